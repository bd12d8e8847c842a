"""The store's interface: what a coordinator needs of a database.

Synchronous and small: one ``transaction`` commits one group. Everything read inside it is read
after the session's row is locked, so nothing cached from before can be wrong, and numbers are
given out in the order of commits. The other reads serve catch-up, bootstraps and tools.

Every implementation passes the one conformance suite, ``syncline.testing.StoreContract``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from syncline.sync import Closed, Conflict, Dot


class RecordKey(NamedTuple):
    """A record within its session."""

    collection: str
    id: str


@dataclass(frozen=True, slots=True)
class Identity:
    """The store's random id and its epoch, which a restore raises."""

    store_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Head:
    """Where a session stands. ``epoch`` is that of the entry at ``seq`` (at creation: the store's).

    Entries at or below ``floor`` are not held. ``seq`` and ``floor`` are 0 for an empty log, whose
    ``hash`` is the genesis.
    """

    epoch: int
    seq: int
    hash: bytes
    genesis: bytes
    floor: int
    label: str = ""


class LogRow(NamedTuple):
    """One entry as stored: its place, the chain's hash there, its dot, bytes and salt."""

    seq: int
    hash: bytes
    client: str
    n: int
    events: int
    entry: bytes
    salt: bytes


class RecordRow(NamedTuple):
    """A materialised record; ``seq`` is that of the last entry that touched it."""

    collection: str
    id: str
    seq: int
    state: bytes


@dataclass(frozen=True, slots=True)
class RefusalRow:
    """A number that was consumed without an entry.

    ``code`` is that of the error tree; 0 for a repeat of an op that is in the log under a former
    dot (``of``), and for a void number of a restored server (``of`` None). ``digest`` is the op
    digest (None for a void number).
    """

    client: str
    n: int
    code: int
    reason: str
    detail: Mapping[str, Any]
    digest: bytes | None
    of: Dot | None = None


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A row for the audit ledger, before it is numbered and hashed.

    ``facts`` are plain data without anything that identifies a person; ``identity`` (principal,
    client) goes into a side table that can be cleared, the row holds its salted digest.
    """

    kind: str
    at: int
    session: str
    facts: Mapping[str, Any]
    identity: Mapping[str, Any]


class SealedRow(NamedTuple):
    """A ledger row as stored: numbered, chained by ``hash``, its bytes as they were hashed."""

    n: int
    hash: bytes
    row: bytes


class LastOp(NamedTuple):
    """The last number of a client that was settled or finally refused, and the running hash."""

    n: int
    running: bytes


class Device(NamedTuple):
    """The latest incarnation that a client id has shown, and the principal it belongs to.

    ``principal`` is None while it belongs to nobody: new, from an older file, or erased.
    """

    incarnation: int
    principal: str | None


NO_DEVICE = Device(0, None)


class Transaction(Protocol):
    """One group's reads and writes. Leaving the context commits; an exception rolls all back.

    Leaving it normally means that all of it is durable; any error means that nothing of it is
    stored (but for WriteUnknown, 3106, when the database cannot be asked any more). After an error
    of the database, the transaction takes nothing more, also when the caller swallowed the error.
    Misuse (a gap in the log, a repeated dot, an unknown session) is our own bug: AssertionError.
    """

    def head(self, session: str) -> Head | None:
        """The session's head, its row locked until the end; None for an unknown session."""

    def create(self, session: str, genesis: bytes, at: int) -> Head:
        """Make the session, with an empty log, in the store's epoch."""

    def last_ops(self, session: str, clients: Collection[str]) -> dict[str, LastOp]:
        """The last op of each of these clients that has any; their numbers are the session's
        version vector, as far as it names them."""

    def records(self, session: str, keys: Collection[RecordKey]) -> dict[RecordKey, bytes]:
        """The states of those records that exist."""

    def entry_at(self, session: str, dot: Dot) -> LogRow | None:
        """The entry of an op."""

    def entries_of(self, session: str, salts: Collection[bytes]) -> dict[bytes, LogRow]:
        """The entries of ops by their salts, under whatever dot they came into the log."""

    def refusal_at(self, session: str, dot: Dot) -> RefusalRow | None:
        """The refusal of an op."""

    def append(self, session: str, rows: Sequence[LogRow]) -> None:
        """Append entries, dense from the last one on. A gap or a repeated dot is an error.

        The head does not move by itself: see ``set_head``.
        """

    def put_records(self, session: str, rows: Iterable[RecordRow]) -> None: ...

    def put_conflicts(self, session: str, rows: Iterable[Conflict | Closed]) -> None:
        """Open conflicts (unless known, open or closed) and close those named.

        Closed wins over open, whichever arrives first; the first one that closes it stands.
        """

    def put_refusals(self, session: str, rows: Iterable[RefusalRow]) -> None:
        """Keep what consumed numbers; a number twice is an error."""

    def set_last_ops(self, session: str, ops: Mapping[str, LastOp]) -> None: ...

    def set_head(self, session: str, head: Head) -> None: ...

    def device(self, client: str) -> Device:
        """What is known of a client id; incarnation 0 and no principal when it is new."""

    def set_device(self, client: str, device: Device) -> None: ...

    def write_ledger(self, rows: Iterable[LedgerRow]) -> None:
        """Append to the audit ledger, in the same transaction as what it records."""

    # For erasures alone: nothing else may change what is there.

    def rewrite(
        self,
        session: str,
        entries: Iterable[LogRow],
        conflicts: Iterable[Conflict],
        clients: Collection[str],
    ) -> None:
        """Replace the bytes and salts of these entries and the values of these open conflicts.

        Places, dots and hashes stay. Of the refusals of these clients, reason and detail go.
        """

    def identities(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """The identities beside the ledger that are not cleared, by the row's number."""

    def clear_identities(self, rows: Iterable[int]) -> None:
        """Clear the identities of these rows of the ledger; the rows stay as they are."""


class SnapshotPart(NamedTuple):
    """A part of a bootstrap, read at one moment: ``head`` is the head at that moment.

    ``after`` is the opaque cursor of the next part, None when this was the last one; the last one
    carries the session's ``vector``.
    """

    head: Head
    rows: tuple[RecordRow, ...]
    conflicts: tuple[Conflict | Closed, ...]
    entries: tuple[LogRow, ...]
    after: bytes | None
    vector: dict[str, int] | None


class SessionRow(NamedTuple):
    id: str
    label: str
    epoch: int
    seq: int


class Store(Protocol):
    """A store. Used by one thread at a time; these reads are for outside a transaction."""

    def identity(self) -> Identity: ...

    def transaction(self) -> AbstractContextManager[Transaction]: ...

    def head(self, session: str) -> Head | None: ...

    def last_op(self, session: str, client: str) -> LastOp | None: ...

    def sessions(self, after: str, limit: int) -> list[SessionRow]:
        """Sessions by id, after the one named."""

    def entries(self, session: str, after: int, bytes_max: int, items_max: int) -> list[LogRow]:
        """Entries with ``seq > after`` in order, cut at the bounds, but one at least if any."""

    def hash_at(self, session: str, seq: int) -> bytes | None:
        """The chain's hash at a seq: the genesis at 0; None below the floor and above the head."""

    def snapshot(
        self,
        session: str,
        after: bytes,
        client: str,
        pending_from: int,
        bytes_max: int,
        items_max: int,
    ) -> SnapshotPart:
        """The next part of a bootstrap: records, then conflicts, then entries with events or of
        ``client`` from number ``pending_from`` on. An empty ``after`` begins it.

        A part is cut at the bounds, but has one item at least if any is left. Raises MalformedFrame
        (3001) for a cursor that is not one, and UnknownRecord (3002) for an unknown session.
        """

    def ledger(self, after: int, items_max: int) -> list[SealedRow]:
        """Rows of the audit ledger with ``n > after``, in order."""

    def checkpoint(self) -> None:
        """House-keeping between commits, off the path of any answer."""

    def close(self) -> None: ...


def check_appended(session: str, rows: Sequence[LogRow], last: int) -> None:
    """For implementations: raises AssertionError unless ``rows`` go on, dense, after ``last``."""
    for expected, row in enumerate(rows, last + 1):
        if row.seq != expected:
            raise AssertionError(
                f"session {session}: entry {row.seq} appended where {expected} is due"
            )


def check_rewritten(old: LogRow, new: LogRow) -> None:
    """For implementations: raises AssertionError unless only bytes and salt differ."""
    if old._replace(entry=new.entry, salt=new.salt) != new:
        raise AssertionError(f"entry {old.seq} would take another place, dot or hash")
