"""Settling: what an op does to the records it meets. One function, used by both sides.

``settle`` compares a change's context with the record's vector. Whoever had seen everything simply
applies; otherwise each field is settled alone by its stamp, and a value that loses unseen by its
winner is named. What came of it is an **effect**; ``fold`` writes effects. The server settles and
folds; a replica folds what the server settled, and settles its own pending ops to predict them.

The rules are those of version vectors with dotted values (N. Preguiça et al., "Dotted Version
Vectors", 2012) and last-writer-wins registers; see docs/protocol.md, "Settling".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from ._changes import Delete, Dot, Patch, Put, RecordChange, Stamp, decode_stamp
from ._errors import InvalidValue, MalformedFrame, StaleStamp, UnknownRecord
from ._names import HEADER_COLLECTION
from ._records import LIFE, Lost, Record, join_dot, losing_stamps
from ._values import Value, are_names, check_decoded, same
from ._vectors import VersionVector, covers, is_vector, serialise


class Outcome(IntEnum):
    """What came of a change or an op; of an op's changes the strongest counts."""

    APPLIED = 0
    MERGED = 1
    WON = 2
    LOST = 3


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change did to its record when it did not simply apply.

    ``sets`` are the fields that take the change's stamp, ``drops`` those that go, ``floor`` says
    whether the floor rises to the change's stamp, ``alive`` is None when life stays as it was, and
    ``vector`` is the record's vector afterwards.
    """

    outcome: Outcome
    sets: Mapping[str, Value]
    drops: tuple[str, ...]
    floor: bool
    alive: bool | None
    vector: VersionVector
    lost: tuple[Lost, ...]

    def encode(self) -> list[Any]:
        """Plain data for the entry."""
        return [
            int(self.outcome),
            dict(sorted(self.sets.items())),
            list(self.drops),
            self.floor,
            self.alive,
            serialise(self.vector),
            [list(lost) for lost in self.lost],
        ]

    @staticmethod
    def decode(row: Any) -> Effect | None:
        """The effect of its plain data; None stays None. Raises MalformedFrame (3001)."""
        if row is None:
            return None
        try:
            outcome, sets, drops, floor, alive, vector, lost = row
            if type(sets) is not dict or not type(drops) is type(lost) is list:
                raise TypeError("an effect's sets are a map, drops and lost are lists")
            names = [*sets, *drops, *(row[0] for row in lost)]
            if not is_vector(vector) or not are_names(names):
                raise TypeError("an effect has a vector, and names for its fields")
            check_decoded(sets.values())
            check_decoded([row[1] for row in lost])
            if type(outcome) is not int or type(floor) is not bool:
                raise TypeError("an effect's outcome is an integer, its floor a bool")
            if alive is not None and type(alive) is not bool:
                raise TypeError("an effect's life is a bool or nil")
            return Effect(
                Outcome(outcome),
                sets,
                tuple(drops),
                floor,
                alive,
                vector,
                tuple(Lost(f, v, decode_stamp(a), decode_stamp(b)) for f, v, a, b in lost),
            )
        except (TypeError, ValueError, LookupError, InvalidValue) as error:
            raise MalformedFrame("an entry's effect has the wrong shape") from error


class Settled(NamedTuple):
    """A change's outcome, the record afterwards, and the effect unless it simply applied."""

    outcome: Outcome
    record: Record
    effect: Effect | None

    @property
    def lost(self) -> tuple[Lost, ...]:
        return () if self.effect is None else self.effect.lost


def settle(
    record: Record | None, change: RecordChange, stamp: Stamp, held: VersionVector
) -> Settled:
    """Settle one change against the record that it meets (None: there is none).

    ``held`` is the session's vector: the last op of each client that the log has settled.
    Raises UnknownRecord (3002) for a patch of a record that is not there, and StaleStamp (3003)
    when the stamp is not above all that the change's context had seen.
    """
    context = change.context
    if record is None:
        if (
            type(change) is Patch
            and change.collection != HEADER_COLLECTION
            and covers(held, context)
        ):
            raise UnknownRecord(
                f"there is no record {change.collection}/{change.id} to patch",
                collection=change.collection,
                id=change.id,
            )
        effect = None if covers(held, context) else _applied(None, change, stamp, held)
        return Settled(Outcome.APPLIED, fold(None, change, stamp, effect), effect)
    if covers(context, record.vector):
        _check_above(record.life, stamp, change)
        effect = None if covers(held, context) else _applied(record, change, stamp, held)
        return Settled(Outcome.APPLIED, fold(record, change, stamp, effect), effect)
    effect = _concurrent(record, change, stamp, held)
    return Settled(effect.outcome, fold(record, change, stamp, effect), effect)


def fold(
    record: Record | None, change: RecordChange, stamp: Stamp, effect: Effect | None
) -> Record:
    """The record after a change whose effect is known. Needs no policy and decides nothing."""
    if effect is None:
        return _fold_applied(record, change, stamp)
    fields = dict(record.fields) if record is not None else {}
    stamps = dict(record.stamps) if record is not None else {}
    for name in effect.drops:
        fields.pop(name, None)
        stamps.pop(name, None)
    for name, value in effect.sets.items():
        fields[name] = value
        stamps[name] = stamp
    floor = stamp if effect.floor else record.floor if record is not None else None
    if effect.alive is not None or record is None:
        return Record(fields, stamps, floor, bool(effect.alive), stamp, effect.vector)
    return Record(fields, stamps, floor, record.alive, record.life, effect.vector)


def _fold_applied(record: Record | None, change: RecordChange, stamp: Stamp) -> Record:
    vector = {**change.context, stamp.client: stamp.n}
    if type(change) is Put:
        stamps = dict.fromkeys(change.fields, stamp)
        return Record(change.fields, stamps, stamp, True, stamp, vector)
    if record is None:
        fields = {} if type(change) is Delete else change.fields  # type: ignore[union-attr]
        stamps = dict.fromkeys(fields, stamp)
        return Record(fields, stamps, None, type(change) is not Delete, stamp, vector)
    if type(change) is Delete:
        return Record(record.fields, record.stamps, record.floor, False, stamp, vector)
    assert type(change) is Patch
    fields = {**record.fields, **change.fields}
    stamps = {**record.stamps, **dict.fromkeys(change.fields, stamp)}
    return Record(fields, stamps, record.floor, True, stamp, vector)


def _applied(
    record: Record | None, change: RecordChange, stamp: Stamp, held: VersionVector
) -> Effect:
    """An applied change spelled out, for when its context names ops that the log does not hold."""
    old = {} if record is None else record.vector
    vector = join_dot(old, change.context, Dot(stamp.client, stamp.n), held)
    is_put = type(change) is Put
    sets: Mapping[str, Value] = {} if type(change) is Delete else change.fields  # type: ignore[union-attr]
    drops = (
        tuple(n for n in record.fields if n not in sets) if record is not None and is_put else ()
    )
    return Effect(Outcome.APPLIED, sets, drops, is_put, type(change) is not Delete, vector, ())


def seen_stamp(record: Record, context: VersionVector) -> Stamp | None:
    """The newest stamp in ``record`` that an author with this context had seen."""
    stamps = {record.life, *record.stamps.values()}
    if record.floor is not None:
        stamps.add(record.floor)
    return max((s for s in stamps if context.get(s.client, 0) >= s.n), default=None)


def _check_above(seen: Stamp | None, stamp: Stamp, change: RecordChange) -> None:
    if seen is not None and stamp <= seen:
        raise StaleStamp(
            f"the stamp of {change.collection}/{change.id} is not above what its author had seen",
            updated_at=stamp.updated_at,
            seen=seen.updated_at,
        )


def _concurrent(record: Record, change: RecordChange, stamp: Stamp, held: VersionVector) -> Effect:
    context = change.context
    _check_above(seen_stamp(record, context), stamp, change)
    sets: dict[str, Value] = {}
    drops: list[str] = []
    mine_lost: list[Lost] = []
    others_lost: list[Lost] = []

    def seen(other: Stamp) -> bool:
        return context.get(other.client, 0) >= other.n

    named: Mapping[str, Value] = {} if type(change) is Delete else change.fields  # type: ignore[union-attr]
    for name, value in named.items():
        there = name in record.fields
        rival = record.stamps[name] if there else record.floor
        if rival is None or seen(rival) or stamp > rival:
            sets[name] = value
            if there and rival is not None and not seen(rival):
                if not same(value, record.fields[name]):
                    others_lost.append(Lost(name, record.fields[name], rival, stamp))
        elif not there or not same(value, record.fields[name]):
            mine_lost.append(Lost(name, value, stamp, rival))

    rises = type(change) is Put and (record.floor is None or stamp > record.floor)
    if type(change) is Put:
        for name, value in record.fields.items():
            if name in named:
                continue
            rival = record.stamps[name]
            if seen(rival):
                drops.append(name)
            elif stamp > rival:
                drops.append(name)
                others_lost.append(Lost(name, value, rival, stamp))

    alive = type(change) is not Delete
    takes = stamp > record.life
    if alive != record.alive:
        if not takes:
            mine_lost.append(Lost(LIFE, dict(named) if alive else None, stamp, record.life))
        else:
            unseen = [at for at in losing_stamps(record) if not seen(at)]
            if unseen:
                others_lost.append(Lost(LIFE, record.visible, max(unseen), stamp))

    outcome = Outcome.LOST if mine_lost else Outcome.WON if others_lost else Outcome.MERGED
    vector = join_dot(record.vector, context, Dot(stamp.client, stamp.n), held)
    lost = tuple(sorted(mine_lost + others_lost, key=lambda one: (one.field, one.loser)))
    return Effect(
        outcome, sets, tuple(sorted(drops)), rises, alive if takes else None, vector, lost
    )
