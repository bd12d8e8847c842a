"""Entries and the changes in them, read from their bytes without trust."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._codec import (
    HASH_BYTES,
    SALT_BYTES,
    Vector,
    decode,
    decode_exact,
    digest,
    is_number,
    need,
    op_digest,
    pack,
    read_vector,
)

PUT, PATCH, DELETE, EVENT, RESOLVE, ERASE = range(1, 7)
HEADER = "$session"


@dataclass(frozen=True, slots=True)
class Change:
    """One change. ``id`` is the conflict's for RESOLVE; ``fields`` is the payload for EVENT.

    For ERASE ``fields`` are ``clients`` and ``rewritten``, as they are written.
    """

    kind: int
    collection: str
    id: str
    context: Vector
    fields: dict[str, Any]

    @property
    def edits(self) -> bool:
        return self.kind <= DELETE

    @property
    def ends(self) -> bool:
        """Whether it deletes its session."""
        key = (self.kind, self.collection, self.id)
        return key == (PATCH, HEADER, "header") and self.fields.get("status") == "deleted"


def read_body(body: bytes) -> list[Change]:
    """The changes of an op's body."""
    rows = decode(body)
    need(type(rows) is list and bool(rows), "has a body that is not a list of changes")
    return [_read_change(row) for row in rows]


def _read_change(row: Any) -> Change:
    need(type(row) is list and bool(row) and type(row[0]) is int, "has a change of no kind")
    kind, rest = row[0], row[1:]
    shape = [type(part) for part in rest]
    if kind in (PUT, PATCH) and shape == [str, str, dict, dict]:
        return Change(kind, rest[0], rest[1], read_vector(rest[2]), rest[3])
    if kind == DELETE and shape == [str, str, dict]:
        return Change(kind, rest[0], rest[1], read_vector(rest[2]), {})
    if kind == EVENT and shape == [str, dict]:
        return Change(kind, rest[0], "", {}, rest[1])
    if kind == RESOLVE and shape == [str]:
        return Change(kind, "", rest[0], {}, {})
    if kind == ERASE and shape == [list, list]:
        return Change(kind, "", "", {}, {"clients": rest[0], "rewritten": rest[1]})
    raise ValueError("has a change of unknown kind or shape")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log, its op and effects still in bytes."""

    epoch: int
    seq: int
    client: str
    n: int
    outcome: int
    accepted_at: int
    salt: bytes
    effects: bytes
    body: bytes

    @property
    def erased(self) -> bool:
        """Two digests stand where the salt was."""
        return len(self.salt) == 2 * HASH_BYTES

    @property
    def digest(self) -> bytes:
        return self.salt[:HASH_BYTES] if self.erased else op_digest(self.salt, self.body)

    def hash(self, previous: bytes) -> bytes:
        header = pack([self.epoch, self.seq, self.client, self.n, self.outcome, self.accepted_at])
        effects = self.salt[HASH_BYTES:] if self.erased else digest(b"ef", self.salt, self.effects)
        return digest(b"en", previous, header, self.digest, effects)


def read_entry(data: bytes) -> Entry:
    """The entry of its stored bytes."""
    row = decode_exact(data)
    need(type(row) is list and len(row) == 9, "is not an entry")
    epoch, seq, client, n, outcome, at, salt, effects, body = row
    need(
        is_number(epoch)
        and is_number(seq)
        and type(client) is str
        and is_number(n)
        and is_number(outcome, 0)
        and is_number(at, 0)
        and type(salt) is bytes
        and len(salt) in (SALT_BYTES, 2 * HASH_BYTES)
        and type(effects) is bytes
        and type(body) is bytes,
        "is not an entry",
    )
    return Entry(epoch, seq, client, n, outcome, at, salt, effects, body)


def read_effects(data: bytes, count: int) -> tuple[list[int], list[Any]]:
    """The stamps and the effects, one of each per change; an effect of None: simply applied."""
    row = decode_exact(data)
    need(type(row) is list and len(row) == 2, "has effects of the wrong shape")
    stamps, effects = row
    need(
        type(stamps) is list and len(stamps) == count and all(is_number(at, 0) for at in stamps),
        "has stamps that do not fit its changes",
    )
    if effects is None:
        return stamps, [None] * count
    need(
        type(effects) is list
        and len(effects) == count
        and any(effect is not None for effect in effects),
        "has effects that do not fit its changes",
    )
    return stamps, effects
