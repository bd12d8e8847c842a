"""Settling, written a second time from the rules.

A record is a join of writes. Each field carries the stamp of the write it came from; the floor is
the stamp of the newest put; life is the newest stamp of all and says whether the record lives. A
change that has seen the whole record applies. Any other is concurrent, and every claim it makes (a
value, the clearing of a field by a put, life or death) is held against what stands there: the
larger stamp takes the place, and a value that loses without its winner having seen it is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._codec import (
    Stamp,
    Vector,
    canonical,
    conflict_id,
    decode,
    need,
    pack,
    read_stamp,
    read_vector,
)
from ._log import DELETE, HEADER, PATCH, PUT, Change

LIFE = "$alive"
APPLIED, MERGED, WON, LOST = range(4)


@dataclass(frozen=True, slots=True)
class State:
    """A record: ``fields`` maps a name to its value and stamp."""

    vector: Vector
    alive: bool
    life: Stamp
    floor: Stamp | None
    fields: dict[str, tuple[Any, Stamp]]

    @property
    def values(self) -> dict[str, Any]:
        return {name: value for name, (value, _) in self.fields.items()}

    def encode(self) -> bytes:
        """The canonical bytes."""
        apart = {name: stamp for name, (_, stamp) in self.fields.items() if stamp != self.life}
        floor = True if self.floor == self.life else self.floor
        return canonical([self.vector, self.alive, self.life, floor, self.values, apart])


@dataclass(frozen=True, slots=True)
class LostValue:
    """A value that lost, where the log says so."""

    seq: int
    collection: str
    record_id: str
    field: str
    value: Any
    loser: Stamp
    winner: Stamp

    @property
    def conflict(self) -> str:
        return conflict_id(self.loser, self.collection, self.record_id, self.field)

    def row(self) -> list[Any]:
        """The open conflict as the state holds it."""
        return [
            self.conflict,
            self.collection,
            self.record_id,
            self.field,
            self.value,
            self.loser,
            self.winner,
        ]


def read_state(data: bytes) -> State:
    """The record of its canonical bytes; other bytes for the same record are a problem."""
    row = decode(data)
    need(type(row) is list and len(row) == 6, "is not a record")
    vector, alive, life_row, floor_row, values, apart = row
    need(
        type(alive) is bool and type(values) is dict and type(apart) is dict,
        "is not a record",
    )
    life = read_stamp(life_row)
    floor = life if floor_row is True else None if floor_row is None else read_stamp(floor_row)
    fields = {
        name: (value, read_stamp(apart[name]) if name in apart else life)
        for name, value in values.items()
    }
    state = State(read_vector(vector), alive, life, floor, fields)
    need(state.encode() == data, "is a record, but not in its canonical form")
    return state


def within(vector: Vector, held: Vector) -> bool:
    """Whether ``held`` has seen all of ``vector``."""
    return all(n <= held.get(client, 0) for client, n in vector.items())


@dataclass(frozen=True, slots=True)
class Result:
    """The record afterwards and what came of the change.

    ``effect`` is as the log writes it; ``smaller`` tells of a concurrent change that its stamp was
    below the newest one of the record.
    """

    state: State
    outcome: int
    effect: list[Any] | None
    concurrent: bool
    smaller: bool


def settle(state: State | None, change: Change, stamp: Stamp, held: Vector) -> Result:
    """Settle one change; ``held`` is what the log had settled of each client before its op.

    Raises ValueError for a change that a server had to refuse.
    """
    context = change.context
    known = within(context, held)
    vector = _joined(state, context, stamp, held)
    if state is None or within(state.vector, context):
        if state is None:
            refused = change.kind == PATCH and change.collection != HEADER and known
            need(not refused, "patches a record that is not there")
        else:
            need(stamp > state.life, "has a stamp that is not above what its context had seen")
        return _apply(state, change, stamp, vector, spelled_out=not known)
    return _contend(state, change, stamp, vector)


def _joined(state: State | None, context: Vector, stamp: Stamp, held: Vector) -> Vector:
    joined = {} if state is None else dict(state.vector)
    seen = [(client, min(n, held.get(client, 0))) for client, n in context.items()]
    for client, n in [*seen, (stamp[1], stamp[2])]:
        if n > joined.get(client, 0):
            joined[client] = n
    return joined


def _apply(
    state: State | None, change: Change, stamp: Stamp, vector: Vector, *, spelled_out: bool
) -> Result:
    is_put, alive = change.kind == PUT, change.kind != DELETE
    old = {} if state is None else state.fields
    fields = {} if is_put else dict(old)
    fields.update((name, (value, stamp)) for name, value in change.fields.items())
    floor = stamp if is_put else None if state is None else state.floor
    effect = None
    if spelled_out:
        drops = [name for name in old if name not in fields]
        effect = [APPLIED, change.fields, drops, is_put, alive, vector, []]
    return Result(State(vector, alive, stamp, floor, fields), APPLIED, effect, False, False)


def _contend(state: State, change: Change, stamp: Stamp, vector: Vector) -> Result:
    def seen(other: Stamp) -> bool:
        return change.context.get(other[1], 0) >= other[2]

    standing = [state.life, *(written for _, written in state.fields.values())]
    standing += [] if state.floor is None else [state.floor]
    need(
        all(stamp > other for other in standing if seen(other)),
        "has a stamp that is not above what its context had seen",
    )
    fields, sets, drops = dict(state.fields), {}, []
    lost: list[tuple[str, Any, Stamp, Stamp]] = []
    for name in {**state.fields, **change.fields}:
        there = name in state.fields
        old, rival = state.fields[name] if there else (None, state.floor)
        takes = rival is None or stamp > rival
        if name in change.fields:
            new = change.fields[name]
            if takes:
                sets[name] = new
                fields[name] = (new, stamp)
            if rival is not None and not (there and canonical(old) == canonical(new)):
                if not takes:
                    lost.append((name, new, stamp, rival))
                elif there and not seen(rival):
                    lost.append((name, old, rival, stamp))
        elif change.kind == PUT and takes and rival is not None:
            drops.append(name)
            del fields[name]
            if not seen(rival):
                lost.append((name, old, rival, stamp))

    alive = change.kind != DELETE
    newest = stamp > state.life
    if alive != state.alive and not newest:
        lost.append((LIFE, change.fields if alive else None, stamp, state.life))
    elif alive != state.alive:
        # A deletion takes along every edit that shows, the older ones of other authors as well.
        ended = [state.life, *(at for _, at in state.fields.values())]
        unseen = [at for at in (ended if state.alive else ended[:1]) if not seen(at)]
        if unseen:
            lost.append((LIFE, state.values if state.alive else None, max(unseen), stamp))

    rises = change.kind == PUT and (state.floor is None or stamp > state.floor)
    lost.sort(key=lambda one: (one[0], one[2]))
    own_lost = any(loser == stamp for _, _, loser, _ in lost)
    outcome = LOST if own_lost else WON if lost else MERGED
    effect = [outcome, sets, drops, rises, alive if newest else None, vector, lost]
    after = State(
        vector,
        alive if newest else state.alive,
        stamp if newest else state.life,
        stamp if rises else state.floor,
        fields,
    )
    return Result(after, outcome, effect, True, not newest)


def normal_effect(effect: Any) -> bytes:
    """An effect's bytes for comparing; the order of dropped names and of inner maps is free."""
    if type(effect) is list and len(effect) == 7 and type(effect[2]) is list:
        need(all(type(name) is str for name in effect[2]), "drops a field that is not text")
        effect = [*effect[:2], sorted(effect[2]), *effect[3:]]
    return canonical(effect) if effect is not None else pack(None)
