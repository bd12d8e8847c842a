"""What settling must come to, said a second time: a model that shares no code with the core.

The core goes op by op and keeps records. The model has the whole set of writes before it, with
what each author had really seen, and says per field who has the largest stamp above the floor. It
also knows which values must not vanish without a conflict. Histories are generated under the
writing rule: several authors with clocks of their own, which may stand still or run backwards,
each having seen any causally closed part of the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from syncline.sync import (
    LIFE,
    Delete,
    Dot,
    Effect,
    Kind,
    Lost,
    Patch,
    Put,
    Record,
    RecordChange,
    Stamp,
    pack,
    settle,
    unpack,
)

CLIENTS = ("ann", "bob", "cyd")
RECORDS = ("r1", "r2")
FIELDS = ("f", "g", "h")


@dataclass(frozen=True)
class Write:
    """What one op did to one record. ``seen`` are the dots that its author had seen."""

    stamp: Stamp
    kind: Kind
    fields: Mapping[str, int]
    context: Mapping[str, int]
    seen: frozenset[Dot]

    @property
    def dot(self) -> Dot:
        return Dot(self.stamp.client, self.stamp.n)

    def saw(self, other: Write) -> bool:
        return other.dot in self.seen

    def covers(self, name: str) -> bool:
        """Whether it overwrites the field, be it by clearing it."""
        return self.kind is Kind.PUT or name in self.fields

    def change(self, record_id: str) -> RecordChange:
        if self.kind is Kind.DELETE:
            return Delete("notes", record_id, self.context)
        made = Put if self.kind is Kind.PUT else Patch
        return made("notes", record_id, self.context, dict(self.fields))


@dataclass(frozen=True)
class WrittenOp:
    dot: Dot
    writes: Mapping[str, Write]
    seen: frozenset[Dot]


def settled(writes: Iterable[Write]) -> Record | None:
    """The state that these writes of one record come to, in whatever order they arrive."""
    ordered = sorted(writes, key=lambda write: write.stamp)
    if not ordered:
        return None
    floor = max((w.stamp for w in ordered if w.kind is Kind.PUT), default=None)
    fields: dict[str, int] = {}
    stamps: dict[str, Stamp] = {}
    vector: dict[str, int] = {}
    for write in ordered:
        vector[write.stamp.client] = max(vector.get(write.stamp.client, 0), write.stamp.n)
        if floor is None or write.stamp >= floor:
            fields.update(write.fields)
            stamps.update(dict.fromkeys(write.fields, write.stamp))
    newest = ordered[-1]
    return Record(fields, stamps, floor, newest.kind is not Kind.DELETE, newest.stamp, vector)


def unlisted(writes: Sequence[Write], lost: Iterable[Lost]) -> list[tuple[Stamp, str]]:
    """The values that vanished without a conflict, as (stamp, field): there must be none.

    A value may go quietly in two ways only: somebody who had seen it overwrote it, or an equal
    value with a larger stamp stands for it (and is then itself looked after).
    """
    record = settled(writes)
    assert record is not None
    listed = set()
    for one in lost:
        listed.add((one.loser, one.field))
        if one.field == LIFE and one.value is not None:
            listed |= {(stamp_of(writes, n, one), n) for n in one.value}
    silent = []
    for write in writes:
        later = [w for w in writes if w.stamp > write.stamp]
        for name, value in write.fields.items():
            over = [w for w in later if w.covers(name)]
            hidden = [] if record.alive else [w for w in later if w.kind is Kind.DELETE]
            if not over and not hidden:
                continue
            if any(w.saw(write) for w in (*over, *hidden)):
                continue
            if any(w.fields.get(name) == value for w in over):
                continue
            if not {(write.stamp, name), (write.stamp, LIFE)} & listed:
                silent.append((write.stamp, name))
        if write.kind is Kind.DELETE and record.alive:
            revived = [w for w in later if w.kind is not Kind.DELETE]
            known = any(w.saw(write) for w in revived)
            again = any(w.kind is Kind.DELETE for w in later)
            if not known and not again and (write.stamp, LIFE) not in listed:
                silent.append((write.stamp, LIFE))
    return silent


def stamp_of(writes: Sequence[Write], name: str, lost: Lost) -> Stamp:
    """Who wrote this field of a record that lost its life: the last one before it died."""
    return max(
        (
            w.stamp
            for w in writes
            if w.stamp < lost.winner and w.fields.get(name, lost) == lost.value[name]
        ),
    )


# Histories.

_CHANGE = st.tuples(
    st.sampled_from([Kind.PATCH, Kind.PUT, Kind.DELETE]),
    st.integers(0, 7),  # which fields
    st.integers(0, 8),  # their values, in base 3
    st.integers(0, 12),  # what the author's clock says
)
_STEP = st.tuples(
    st.integers(0, len(CLIENTS) - 1),
    st.integers(0, 6),  # how far back the op lies that the author has just learnt of
    st.integers(0, len(RECORDS) - 1),
    _CHANGE,
    st.none() | _CHANGE,  # the other record, in the same op
)
STEPS = st.lists(_STEP, min_size=1, max_size=12)


def history(steps: Sequence[Any]) -> list[WrittenOp]:
    """The ops of these steps, in an order in which nothing comes before what it had seen."""
    ops: list[WrittenOp] = []
    seen_by: dict[str, frozenset[Dot]] = dict.fromkeys(CLIENTS, frozenset())
    for author, back, record, first, second in steps:
        client = CLIENTS[author]
        if 0 < back <= len(ops):
            learnt = ops[-back]
            seen_by[client] |= learnt.seen | {learnt.dot}
        seen = seen_by[client]
        n = 1 + sum(1 for op in ops if op.dot.client == client)
        writes = {RECORDS[record]: _write(ops, RECORDS[record], client, n, seen, first)}
        if second is not None:
            other = RECORDS[1 - record]
            writes[other] = _write(ops, other, client, n, seen, second)
        ops.append(WrittenOp(Dot(client, n), writes, seen))
        seen_by[client] = seen | {Dot(client, n)}
    return ops


def _write(
    ops: Sequence[WrittenOp],
    record_id: str,
    client: str,
    n: int,
    seen: frozenset[Dot],
    change: tuple[Kind, int, int, int],
) -> Write:
    """One write under the writing rule, on the state that its author sees."""
    kind, mask, values, clock = change
    visible = settled(writes_of(ops, record_id, seen))
    if visible is None and kind is Kind.PATCH:
        kind = Kind.PUT
    chosen = [name for bit, name in enumerate(FIELDS) if mask >> bit & 1]
    fields = {} if kind is Kind.DELETE else {c: values // 3**i % 3 for i, c in enumerate(chosen)}
    at = clock if visible is None else max(clock, visible.life.updated_at + 1)
    return Write(
        Stamp(at, client, n), kind, fields, {} if visible is None else dict(visible.vector), seen
    )


def writes_of(
    ops: Iterable[WrittenOp], record_id: str, among: frozenset[Dot] | None = None
) -> list[Write]:
    return [
        op.writes[record_id]
        for op in ops
        if record_id in op.writes and (among is None or op.dot in among)
    ]


def closed(ops: Sequence[WrittenOp], picks: Iterable[int]) -> frozenset[Dot]:
    """The least causally closed set of dots that has these ops in it."""
    dots: frozenset[Dot] = frozenset()
    for pick in picks:
        if ops:
            op = ops[pick % len(ops)]
            dots |= op.seen | {op.dot}
    return dots


def interleaved(ops: Sequence[WrittenOp], picks: Sequence[int]) -> list[WrittenOp]:
    """An order of arrival that keeps each client's own order, and nothing else."""
    queues = [[op for op in ops if op.dot.client == client] for client in CLIENTS]
    arrived = []
    for pick in (*picks, *([0] * len(ops))):
        waiting = [queue for queue in queues if queue]
        if waiting:
            arrived.append(waiting[pick % len(waiting)].pop(0))
    return arrived


def causal(ops: Sequence[WrittenOp], picks: Sequence[int]) -> list[WrittenOp]:
    """An order of arrival in which nothing comes before what it had seen."""
    left = list(ops)
    arrived: list[WrittenOp] = []
    dots: set[Dot] = set()
    for pick in (*picks, *([0] * len(ops))):
        ready = [op for op in left if op.seen <= dots]
        if ready:
            op = ready[pick % len(ready)]
            left.remove(op)
            arrived.append(op)
            dots.add(op.dot)
    return arrived


@dataclass
class Log:
    """The core at work: records and the session's vector, op by op as a server would."""

    records: dict[str, Record]
    held: dict[str, int]
    lost: dict[str, list[Lost]]

    @staticmethod
    def of(ops: Iterable[WrittenOp]) -> Log:
        log = Log({}, {}, {name: [] for name in RECORDS})
        for op in ops:
            log.add(op)
        return log

    def add(self, op: WrittenOp) -> dict[str, Effect | None]:
        """Settle one op; gives its effects as a replica reads them."""
        effects = {name: self._settle(name, write) for name, write in op.writes.items()}
        self.held[op.dot.client] = op.dot.n
        return effects

    def _settle(self, record_id: str, write: Write) -> Effect | None:
        settled_ = settle(
            self.records.get(record_id), write.change(record_id), write.stamp, self.held
        )
        self.records[record_id] = settled_.record
        self.lost[record_id] += settled_.lost
        return None if settled_.effect is None else _sent(settled_.effect)


def _sent(effect: Effect) -> Effect | None:
    return Effect.decode(unpack(pack(effect.encode())))
