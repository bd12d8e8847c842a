"""Records: the settled state of one thing, and its canonical bytes.

A record is a join of all writes that reached it: per field the value with the largest stamp, the
**floor** (the stamp of its newest put, below which no field shows), whether it is alive, by the
largest stamp of all, and the vector of the ops in it. Fields below the floor are not kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ._changes import DELETED, Dot, Stamp, decode_stamp
from ._errors import InvalidValue, MalformedFrame
from ._forms import Form, PlainFields
from ._values import Value, are_names, canonical, check_decoded, pack, unpack
from ._vectors import VersionVector, clip, covers, is_vector, merge, serialise


class Record(NamedTuple):
    """The state of one record; never changed in place.

    ``life`` is the stamp that decided ``alive``. Since every write to a record says whether it is
    alive, it is also the newest stamp of the record (the ``S`` of the writing rule).
    """

    fields: dict[str, Value]
    stamps: dict[str, Stamp]
    floor: Stamp | None
    alive: bool
    life: Stamp
    vector: VersionVector

    @property
    def visible(self) -> dict[str, Value] | None:
        """The fields that a reader sees; None for a record that is deleted."""
        return self.fields if self.alive else None

    def encode(self) -> bytes:
        """The canonical bytes: equal for equal records, on every machine."""
        life = self.life
        apart = {
            name: stamp
            for name, stamp in self.stamps.items()
            if stamp is not life and stamp != life
        }
        return pack(
            (
                serialise(self.vector),
                self.alive,
                life,
                True if self.floor == life else self.floor,
                _sorted_fields(self.fields),
                dict(sorted(apart.items())) if len(apart) > 1 else apart,
            )
        )

    @staticmethod
    def decode(data: bytes) -> Record:
        """The record of its canonical bytes. Raises MalformedFrame (3001)."""
        usual = _STATE.read_canonical(data)
        if usual is not None:
            vector, alive, life, floor, fields, apart = usual
            stamps = _stamps(fields, apart, life)
            if not isinstance(floor, bool):
                return Record(fields, stamps, floor, alive, life, vector)
            if floor:
                return Record(fields, stamps, life, alive, life, vector)
        try:
            vector, alive, life_row, floor_row, fields, apart = unpack(data)
            if not type(fields) is type(apart) is dict or type(alive) is not bool:
                raise TypeError("a record's fields and stamps are maps")
            if not is_vector(vector) or not are_names(fields):
                raise TypeError("a record has a vector, and names for its fields")
            check_decoded(fields.values())
            life = decode_stamp(life_row)
            floor = (
                life
                if floor_row is True
                else None
                if floor_row is None
                else decode_stamp(floor_row)
            )
            stamps = {name: decode_stamp(row) for name, row in apart.items()}
        except (TypeError, ValueError, InvalidValue) as error:
            raise MalformedFrame("a record's state has the wrong shape") from error
        return Record(fields, _stamps(fields, stamps, life), floor, alive, life, vector)


_STATE: Form[
    tuple[dict[str, int], bool, Stamp, bool | Stamp | None, dict[str, Value], dict[str, Stamp]]
] = Form(tuple[dict[str, int], bool, Stamp, bool | Stamp | None, PlainFields, dict[str, Stamp]])


def _stamps(
    fields: Mapping[str, Value], apart: Mapping[str, Stamp], life: Stamp
) -> dict[str, Stamp]:
    stamps = dict.fromkeys(fields, life)
    if apart:
        stamps.update((name, apart[name]) for name in fields if name in apart)
    return stamps


def _sorted_fields(fields: dict[str, Value]) -> dict[str, Value]:
    if not _NESTED.isdisjoint(map(type, fields.values())):
        # Only these hide maps whose keys need an order of their own.
        return unpack(canonical(fields))  # type: ignore[no-any-return]
    return dict(sorted(fields.items()))


_NESTED: frozenset[type] = frozenset({dict, list})


class Lost(NamedTuple):
    """A value that lost, unseen by its winner.

    ``field`` is ``LIFE`` when life lost against death or the reverse. ``value`` is then all the
    fields that would show (life lost), or None (a deletion lost); ``loser`` is the newest of the
    stamps that the winner had not seen.
    """

    field: str
    value: Value
    loser: Stamp
    winner: Stamp


LIFE = "$alive"


@dataclass(frozen=True, slots=True)
class Resolution:
    """What came of two states of one record: ``record`` is their join, ``lost`` what it costs."""

    record: Record
    concurrent: bool
    lost: tuple[Lost, ...]


def resolve_conflicts(local: Record, remote: Record) -> Resolution:
    """Join two states of one record: version vectors first, last writer wins when concurrent.

    Pure; commutative, associative and idempotent in its ``record``. When one state has seen the
    other, it stands as it is and nothing is lost. Otherwise each field is settled alone by its
    stamp, and a value that lost unseen by its winner is named in ``lost``.
    """
    if covers(local.vector, remote.vector):
        return Resolution(local, False, ())
    if covers(remote.vector, local.vector):
        return Resolution(remote, False, ())
    floors = [record.floor for record in (local, remote) if record.floor is not None]
    floor = max(floors, default=None)
    fields: dict[str, Value] = {}
    stamps: dict[str, Stamp] = {}
    lost: list[Lost] = []
    for name in sorted({*local.fields, *remote.fields}):
        older, newer = _by_stamp(name, local, remote)
        kept = newer is not None and (floor is None or newer[1] >= floor)
        if newer is not None and kept:
            fields[name], stamps[name] = newer[0], newer[1]
        winner = newer[1] if newer is not None and kept else floor
        for loser in (older, None if kept else newer):
            if loser is None or winner is None or loser[2].get(loser[1].client, 0) >= loser[1].n:
                continue
            if kept and newer is not None and canonical(newer[0]) == canonical(loser[0]):
                continue
            lost.append(Lost(name, loser[0], loser[1], winner))
    first, second = sorted((local, remote), key=lambda record: record.life)
    if first.alive != second.alive:
        known = second.vector
        unseen = [at for at in losing_stamps(first) if known.get(at.client, 0) < at.n]
        if unseen:
            lost.append(Lost(LIFE, first.visible, max(unseen), second.life))
    vector = merge(local.vector, remote.vector)
    joined = Record(fields, stamps, floor, second.alive, second.life, vector)
    return Resolution(joined, True, tuple(lost))


def is_deleted(header: Record | None) -> bool:
    """Whether this header is that of a session that was deleted."""
    return header is not None and header.fields.get("status") == DELETED


def losing_stamps(record: Record) -> tuple[Stamp, ...]:
    """The stamps of what is lost when the record's life turns.

    A deletion takes along every edit that shows, not only the newest; whoever deletes may have seen
    that one and not an older one that another author wrote. A deletion that loses is one stamp.
    """
    return (record.life, *record.stamps.values()) if record.alive else (record.life,)


_Candidate = tuple[Value, Stamp, VersionVector]


def _by_stamp(
    name: str, local: Record, remote: Record
) -> tuple[_Candidate | None, _Candidate | None]:
    """The field's two values, older first, each with what the *other* side has seen."""
    found: list[_Candidate] = [
        (mine.fields[name], mine.stamps[name], other.vector)
        for mine, other in ((local, remote), (remote, local))
        if name in mine.fields
    ]
    found.sort(key=lambda candidate: candidate[1])
    if len(found) == 2 and found[0][1] == found[1][1]:
        return None, found[1]
    return (found[0], found[1]) if len(found) == 2 else (None, found[0] if found else None)


def join_dot(
    vector: VersionVector, context: VersionVector, dot: Dot, held: VersionVector
) -> dict[str, int]:
    """A record's vector after an op: itself, the dot, and what the log holds of the context."""
    joined = merge(vector, context if covers(held, context) else clip(context, held))
    joined[dot.client] = max(joined.get(dot.client, 0), dot.n)
    return joined
