"""The error tree.

    SyncError
    ├── ProtocolError             the peer broke the protocol: the connection ends, nothing is lost
    │   ├── MalformedFrame   3001
    │   └── UnknownVersion   3010
    ├── Refused                   an op (or a request) was refused; ``final`` says whether for good
    │   ├── Malformed        3001   final
    │   ├── UnknownRecord    3002   final
    │   ├── StaleStamp       3003   stamp again
    │   ├── Gap              3005   send again from ``expected``
    │   ├── DotReused        3006   new client id, renumber
    │   ├── OutboxFull       3007   the local write fails
    │   ├── Forbidden        3008   session paused, outbox kept
    │   ├── BelowFloor       3009   bootstrap
    │   ├── TooLarge         3011   final
    │   ├── ClockAhead       3012   adopt the offset, stamp again
    │   ├── LockedField      3013   final
    │   ├── SessionDeleted   3014   final
    │   ├── Diverged         3015   find the common seq, heal
    │   ├── ReplicaCloned    3016   new client id, renumber
    │   ├── TooManyRequests  3017   wait as told
    │   ├── Busy             3018   the same again after a delay
    │   ├── InvalidValue     3019   final
    │   ├── Unauthenticated  3020   ask for fresh credentials
    │   └── TooOld           3021   final
    └── LocalError                trouble on this machine: files, disks, processes, addresses
        ├── NotAReplica      3101
        ├── Damaged          3102
        ├── ReadOnly         3103
        ├── NewerFormat      3104
        ├── DiskFull         3105
        ├── WriteUnknown     3106
        ├── LeaseHeld        3107
        ├── Unreachable      3108
        ├── BadPeer          3109
        ├── BadHistory       3110
        ├── AddressTaken     3111
        ├── FileInUse        3112
        ├── NotFound         3113
        ├── TimedOut         3114
        ├── HistoryMissing   3115
        ├── SessionNotFound  3120
        ├── SessionConflict  3121
        ├── InvalidSessionFile 3122
        ├── ModelLocked      3123
        └── LegalHold        3130

3004 is no error: it is the number of the notice that a conflict was settled.
Numbers 3001 to 3099 travel on the wire; 31xx never leave the machine they are raised on.
Each class carries its data as ``detail``; ``str()`` makes the sentence, which says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

CONFLICT_SETTLED = 3004


class SyncError(Exception):
    """Any error of Syncline. ``code`` is stable, ``advice`` says what to do about it.

    ``detail`` holds plain data (text, ints, None) that names the thing at fault.
    """

    code: ClassVar[int] = 3000
    name: ClassVar[str] = "sync error"
    advice: ClassVar[str] = ""

    def __init__(self, reason: str, **detail: Any) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail: Mapping[str, Any] = detail

    def __str__(self) -> str:
        sentence = f"{self.reason} [{self.code} {self.name}]"
        return f"{sentence}. {self.advice}" if self.advice else sentence


class ProtocolError(SyncError):
    """The peer sent something that the protocol does not allow."""


class MalformedFrame(ProtocolError):
    code = 3001
    name = "malformed"
    advice = "Report it: one of the two ends has a bug, or something between them changed bytes"


class UnknownVersion(ProtocolError):
    code = 3010
    name = "protocol version"
    advice = "Upgrade the older of the two ends"


class Refused(SyncError):
    """An op or a request was refused.

    ``final`` refusals consume the op's number: the op goes to the refused table and is never sent
    again. All others leave the op where it is.
    """

    final: ClassVar[bool] = False


class Malformed(Refused):
    code = 3001
    name = "malformed"
    final = True
    advice = "Report it: the program that made this op has a bug"


class UnknownRecord(Refused):
    code = 3002
    name = "unknown session or record"
    final = True
    advice = "Create it first: put the record, or open the session"


class StaleStamp(Refused):
    code = 3003
    name = "stamp not above what its context had seen"
    advice = "The client stamps the op again and sends it once more"


class Gap(Refused):
    code = 3005
    name = "gap"
    advice = "The client sends again from the number named"


class DotReused(Refused):
    code = 3006
    name = "dot reused with other content"
    advice = "The client takes a new client id and renumbers what is pending"


class OutboxFull(Refused):
    code = 3007
    name = "outbox full"
    advice = "Connect and sync, or open the replica with a larger outbox limit"


class Forbidden(Refused):
    code = 3008
    name = "forbidden"
    advice = "The session is paused and its outbox kept: ask its owner or operator for access"


class BelowFloor(Refused):
    code = 3009
    name = "cursor below the log's floor"
    advice = "The client fetches the session afresh and keeps its outbox"


class TooLarge(Refused):
    code = 3011
    name = "too large"
    final = True
    advice = "Make it smaller, or split it over several records or ops"


class ClockAhead(Refused):
    code = 3012
    name = "clock too far ahead"
    advice = "Set this device's clock; the client stamps again with the server's time"


class LockedField(Refused):
    code = 3013
    name = "locked field"
    final = True
    advice = "Fork the session to change what is locked in it"


class SessionDeleted(Refused):
    code = 3014
    name = "session deleted"
    final = True
    advice = "The local copy is kept and can be read, not written"


class Diverged(Refused):
    code = 3015
    name = "history diverged"
    advice = "The client finds the last common entry and heals from there"


class ReplicaCloned(Refused):
    code = 3016
    name = "replica cloned"
    advice = "The client takes a new client id and renumbers what is pending"


class TooManyRequests(Refused):
    code = 3017
    name = "too many requests"
    advice = "Wait as long as the server says, then go on"


class Busy(Refused):
    code = 3018
    name = "busy"
    advice = "The client sends the same again after a delay"


class InvalidValue(Refused):
    code = 3019
    name = "invalid value"
    final = True
    advice = "Change the value at the path named; nothing was stored"


class Unauthenticated(Refused):
    code = 3020
    name = "unauthenticated"
    advice = "Give a valid token; what is pending is kept"


class TooOld(Refused):
    code = 3021
    name = "too old"
    final = True
    advice = "Its record was deleted and collected meanwhile: put it again if it is still wanted"


class LocalError(SyncError):
    """Trouble on this machine; it never travels."""


class NotAReplica(LocalError):
    code = 3101
    name = "not a Syncline file"
    advice = "Check the path; the file was left as it is"


class Damaged(LocalError):
    code = 3102
    name = "damaged file"
    advice = "Keep the file, run 'syncline verify' on it, then restore a backup or start afresh"


class ReadOnly(LocalError):
    code = 3103
    name = "read-only"
    advice = "Make the file and its folder writable for this user"


class NewerFormat(LocalError):
    code = 3104
    name = "newer format"
    advice = "Upgrade Syncline on this machine; the file was left as it is"


class DiskFull(LocalError):
    code = 3105
    name = "disk full or failing"
    advice = "Free some space and write again; nothing of this write was stored"


class WriteUnknown(LocalError):
    code = 3106
    name = "write unknown"
    advice = "The file could not be read back: open the replica again and ask the receipt"


class LeaseHeld(LocalError):
    code = 3107
    name = "another process syncs this replica"
    advice = "Let it do the work, or stop it first"


class Unreachable(LocalError):
    code = 3108
    name = "server not reachable"
    advice = "Check the address and the network; what is pending is kept"


class BadPeer(LocalError):
    code = 3109
    name = "not a Syncline server"
    advice = "Check the address: whatever answers there does not speak syncline.v1"


class BadHistory(LocalError):
    code = 3110
    name = "bad history file"
    advice = "Mend the line named; nothing was played"


class AddressTaken(LocalError):
    code = 3111
    name = "address in use"
    advice = "Stop the other program, or choose another port with --port"


class FileInUse(LocalError):
    code = 3112
    name = "file in use"
    advice = "Another server process has this file open: stop it first"


class NotFound(LocalError):
    code = 3113
    name = "not found"
    advice = "Check the name; 'syncline sessions' lists what is there"


class TimedOut(LocalError):
    code = 3114
    name = "timed out"
    advice = "Nothing is lost: what is pending stays in the outbox and is sent later"


class SessionNotFound(LocalError):
    code = 3120
    name = "session not found"
    advice = "Check its id, or create it first; list_sessions() shows what the store holds"


class SessionConflict(LocalError):
    code = 3121
    name = "session conflict"
    advice = "Nothing was stored: load the session again, and apply the change to what is there now"


class InvalidSessionFile(LocalError):
    code = 3122
    name = "invalid session file"
    advice = "The file is left as it is: mend it, or move it away and restore a backup"


class ModelLocked(LocalError):
    code = 3123
    name = "model locked"
    advice = "Fork the session and change the model there, or create with model_locked=False"


class LegalHold(LocalError):
    code = 3130
    name = "held"
    advice = "Nothing was erased; end the hold first, if that is right"


class HistoryMissing(LocalError):
    code = 3115
    name = "history not here"
    advice = "Connect and fetch the older history, or ask for a seq that can be read here"


def _leaves(base: type[SyncError]) -> list[type[SyncError]]:
    return [leaf for sub in base.__subclasses__() for leaf in (_leaves(sub) or [sub])]


REFUSALS: Mapping[int, type[Refused]] = {
    cls.code: cls for cls in _leaves(Refused) if issubclass(cls, Refused)
}
"""Every refusal that can travel, by its number."""


def is_final(code: int) -> bool:
    """Whether a number can settle an op for good: 0 for a repeat, else as the tree says.

    A number from a newer peer cannot (RE2), whatever its frame claims.
    """
    return code == 0 or (code in REFUSALS and REFUSALS[code].final)


def refusal(code: int, reason: str, detail: Mapping[str, Any] | None = None) -> Refused:
    """The refusal with this number, as the peer sent it; an unknown number becomes ``Busy``.

    A number from a newer peer is taken as not final, since that way nothing is dropped.
    """
    return REFUSALS.get(code, Busy)(reason, **dict(detail or {}))
