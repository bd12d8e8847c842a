"""Entries of the canonical log, and the hashes that chain them.

An entry is encoded once, when the server accepts an op, and those bytes are stored and forwarded
as they are. Its hash covers all that replicas fold:

    op digest      = H("op" salt body)
    effects digest = H("ef" salt effects)
    entry hash     = H("en" previous header op-digest effects-digest)
    genesis        = H("ge" [store id, epoch at creation, session id])
    running hash   = H("ru" previous n op-digest)           per (session, client), without stamps

H is SHA-256; each input begins with its two-letter tag, so that no hash can stand for another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from ._changes import (
    DIGEST_BYTES,
    SALT_BYTES,
    Change,
    Dot,
    Event,
    Stamp,
    decode_body,
)
from ._errors import MalformedFrame, Refused
from ._forms import Form, Number, Time
from ._names import is_id
from ._settle import Effect, Outcome
from ._values import pack, unpack
from ._vectors import NUMBER_MAX

ERASED_SALT_BYTES = 2 * DIGEST_BYTES
NO_HASH = bytes(DIGEST_BYTES)
"""The running hash of a client that has sent nothing."""


def genesis(store_id: str, epoch: int, session: str) -> bytes:
    """The hash before a session's first entry; kept for ever, also when the store moves."""
    return sha256(b"ge" + pack([store_id, epoch, session])).digest()


def op_digest(salt: bytes, body: bytes) -> bytes:
    """The salted digest of an op's bytes; without the salt, nobody can guess the content."""
    return sha256(b"op" + salt + body).digest()


def running_hash(previous: bytes, n: int, digest: bytes) -> bytes:
    """The running hash of a client's ops after number ``n``, whose op digest is ``digest``."""
    return sha256(b"ru" + previous + n.to_bytes(8, "big") + digest).digest()


class Entry(NamedTuple):
    """One accepted op at its place in the log.

    ``accepted_at`` is the server's clock (microseconds since the Unix epoch), for people; nothing
    is ever settled by it. ``effects`` and ``body`` are encoded bytes: see ``read``. An entry of
    which something was erased has its two digests in the place of the salt: see ``_erasure``.
    """

    epoch: Number
    seq: Number
    client: str
    n: Number
    outcome: Outcome
    accepted_at: Time
    salt: bytes
    effects: bytes
    body: bytes

    @property
    def dot(self) -> Dot:
        return Dot(self.client, self.n)

    @property
    def erased(self) -> bool:
        """Whether content of this entry was erased."""
        return len(self.salt) == ERASED_SALT_BYTES

    @property
    def op_digest(self) -> bytes:
        """The salted digest of its op as it was written."""
        return self.salt[:DIGEST_BYTES] if self.erased else op_digest(self.salt, self.body)

    @property
    def digests(self) -> bytes:
        """The digests of its op and of its effects as they were accepted, one after the other."""
        if self.erased:
            return self.salt
        return self.op_digest + sha256(b"ef" + self.salt + self.effects).digest()

    def holds(self, salt: bytes, body: bytes) -> bool:
        """Whether this is the entry of that very op, also when its content is erased."""
        if self.erased:
            return op_digest(salt, body) == self.op_digest
        return salt == self.salt and body == self.body

    @property
    def receipt_id(self) -> str:
        """The id of the receipt that the write got; the same through every renumbering."""
        return self.salt.hex()

    def encode(self) -> bytes:
        return pack(self)

    @staticmethod
    def decode(data: bytes) -> Entry:
        """The entry of its bytes. Raises MalformedFrame (3001)."""
        entry = _ENTRY.read(data)
        if entry is None or len(entry.salt) not in _SALT_SIZES or not is_id(entry.client):
            raise MalformedFrame("a log entry has the wrong shape")
        return entry

    def hash(self, previous: bytes, digests: bytes | None = None) -> bytes:
        """The chain's hash at this entry; ``digests`` are its own, where the caller has them."""
        digests = self.digests if digests is None else digests
        return sha256(b"en" + previous + pack(self[:6]) + digests).digest()

    def read(self) -> list[AcceptedChange]:
        """Its changes, each with the stamp as accepted and its effect (None: simply applied).

        Raises MalformedFrame (3001) when the bytes are not those of an entry.
        """
        try:
            changes = decode_body(self.body)
        except Refused as error:
            raise MalformedFrame(f"entry {self.seq}: {error.reason}") from error
        stamps, effects = _decode_effects(self.effects, len(changes))
        return [
            AcceptedChange(change, Stamp(at, self.client, self.n), Effect.decode(effect))
            for change, at, effect in zip(changes, stamps, effects, strict=True)
        ]


_ENTRY: Form[Entry] = Form(Entry)
_SALT_SIZES = (SALT_BYTES, ERASED_SALT_BYTES)


class AcceptedChange(NamedTuple):
    """A change as the log has it."""

    change: Change
    stamp: Stamp
    effect: Effect | None


def encode_effects(stamps: Sequence[int], effects: Sequence[Effect | None]) -> bytes:
    """What came of an op: the ``updatedAt`` of each change as accepted, and the effects.

    The list of effects is nil when every change simply applied.
    """
    rows: list[Any] | None = None
    if effects.count(None) < len(effects):
        rows = [None if effect is None else effect.encode() for effect in effects]
    return pack((stamps, rows))


_PLAIN_EFFECTS: Form[tuple[list[int], None]] = Form(tuple[list[Time], None])
"""Of an op whose changes simply applied."""


def _decode_effects(data: bytes, count: int) -> tuple[list[int], list[Any]]:
    plain = _PLAIN_EFFECTS.read(data)
    if plain is not None and len(plain[0]) == count:
        return plain[0], [None] * count
    match unpack(data):
        case [list(stamps), None] if len(stamps) == count:
            effects: list[Any] = [None] * count
        case [list(stamps), list(effects)] if len(stamps) == len(effects) == count:
            pass
        case _:
            raise MalformedFrame("an entry's effects have the wrong shape")
    if not all(type(at) is int and 0 <= at <= NUMBER_MAX for at in stamps):
        raise MalformedFrame("an entry's stamps must be integers of 63 bits")
    return stamps, effects


def conflict_id(loser: Stamp, collection: str, record_id: str, field: str) -> str:
    """The id of the conflict in which the value that ``loser`` wrote to ``field`` lost.

    A digest of the losing value's dot, change (an op changes a record once, so the record names
    it) and field: the same on every replica and after a restore.
    """
    named = pack([loser.client, loser.n, collection, record_id, field])
    return sha256(b"co" + named).hexdigest()[:20]


def events_in(changes: Sequence[Change]) -> int:
    """How many of the changes are events."""
    return sum(1 for change in changes if type(change) is Event)


def walk_chain(entries: Sequence[Entry], previous: bytes) -> Iterator[tuple[Entry, bytes]]:
    """Each entry with the chain's hash at it, from the hash before the first one."""
    for entry in entries:
        previous = entry.hash(previous)
        yield entry, previous
