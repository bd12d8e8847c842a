"""Record: the history that real files tell, so that ``syncline replay`` can play it again.

Everything comes from what the files hold anyhow: the log (of a server's file, or of a replica that
has all of it), and what waits in replicas' outboxes. An entry says who wrote what and when; when a
device *synced* is not written down anywhere, but every change carries the vector of what its author
saw of the record. So a device is let sync as late as what it wrote allows: before it writes over
something that it had seen, and before somebody else does who had seen its own. What a device had
not seen when it wrote, it has not seen in the recording either.

A recording plays back to the same records, because the stamps are kept exactly and the state
follows from the stamps; and to the same conflicts, because each author sees the same. Two things a
history cannot say, and ``inexact`` counts the writes that it touches: a device that took others'
entries while its own were still on their way (its sync sends and takes at once), and a write that
brought a deleted record back by resolving a conflict (it becomes a put of the whole record).
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from syncline.sync import (
    Change,
    Delete,
    Dot,
    Erase,
    Event,
    LocalError,
    Patch,
    Put,
    RecordChange,
    Resolve,
    Stamp,
    Value,
    canonical,
    conflict_id,
)

from . import _checkers as checkers
from ._histories import History, Step, Sync, Write
from ._recorded import RecordedOp, read_session

DIGEST_BYTES = 8
Key = tuple[str, str]
RESOLVED = "$resolved"
"""Stands for a collection: a conflict that is closed twice was closed unseen by the second."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A history, and how many of its writes see more or less than they did in life."""

    history: History
    inexact: int


def record(
    *files: str | os.PathLike[str], session: str | None = None, values: bool = True
) -> Recording:
    """The history of a session from a server's file, from replicas' files, or from both.

    The files are only read; an app or a server may have them open. With ``values=False`` each value
    is replaced by a digest that says no more than which values of this recording were equal; names,
    ids and times stay. Raises LocalError when no file holds the log from its beginning, when the
    files are not of one log, or when they hold several sessions and none is named.
    """
    ops = read_session(files, session)
    if not ops:
        raise LocalError("nothing was ever written to this session: there is no history in it")
    return recording_of(ops, None if values else os.urandom(16))


def recording_of(ops: Sequence[RecordedOp], key: bytes | None = None) -> Recording:
    """The history of these ops, in the order of the log; with a key, digests in place of values."""
    return _Recorder(ops, _Values(key)).record()


@dataclass(slots=True)
class _Op:
    """An op of the log or of an outbox. ``place`` is that in the log, ``number`` its author's.

    ``seen`` says, for each record it touches, the last op of each other client on that record which
    its author had seen. ``needs`` are the ops that the author must see before it writes this one,
    and ``deadline`` how long a log still shows it nothing that it had not seen.
    """

    source: RecordedOp
    place: int
    number: int
    seen: dict[Key, dict[str, int]] = field(default_factory=dict)
    needs: set[Dot] = field(default_factory=set)
    deadline: int = 0

    @property
    def dot(self) -> Dot:
        return Dot(self.source.client, self.source.n)


@dataclass(slots=True)
class _Device:
    """``ops`` are all of it, of which so many are written, and sent; ``cursor`` is what it saw."""

    ops: list[_Op] = field(default_factory=list)
    written: int = 0
    sent: int = 0
    cursor: int = 0


class _Recorder:
    def __init__(self, sources: Sequence[RecordedOp], values: _Values) -> None:
        self._values = values
        self._ops: list[_Op] = []
        self._devices: dict[str, _Device] = defaultdict(_Device)
        self._touched: dict[Key, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self._arrived: dict[Dot, int] = {}
        self._arrivals: list[_Op] = []
        self._due: dict[int, list[_Op]] = defaultdict(list)
        self._steps: list[Step] = []
        self._inexact = 0
        self._place = 0
        for place, source in enumerate(sources, 1):
            device = self._devices[source.client]
            op = _Op(source, place, len(device.ops) + 1)
            self._ops.append(op)
            device.ops.append(op)
            for key in _keys(source.changes):
                self._touched[key][source.client].append(source.n)
        self._by_dot = {op.dot: op for op in self._ops}
        self._lost = {
            conflict_id(loser, *key, name): (key, name, loser, winner)
            for source in sources
            for key, name, loser, winner in source.lost
        }
        for op in self._ops:
            self._look_back(op)

    # What each op's author had seen.

    def _look_back(self, op: _Op) -> None:
        client, limit = op.source.client, op.place - 1
        for change in op.source.changes:
            if isinstance(change, Event | Erase):
                continue
            key, context = _key(change), {} if isinstance(change, Resolve) else change.context
            seen = op.seen.setdefault(key, {})
            for other, numbers in self._touched[key].items():
                if other == client:
                    continue
                known = bisect_right(numbers, context.get(other, 0))
                if known:
                    seen[other] = numbers[known - 1]
                    op.needs.add(Dot(other, seen[other]))
                if known < len(numbers):
                    limit = min(limit, self._by_dot[Dot(other, numbers[known])].place - 1)
            if isinstance(change, Resolve) and change.conflict_id in self._lost:
                _, _, loser, winner = self._lost[change.conflict_id]
                op.needs |= {Dot(at.client, at.n) for at in (loser, winner)} & self._by_dot.keys()
        needed = max((self._by_dot[dot].place for dot in op.needs), default=0)
        op.deadline = min(max(limit, needed), op.place - 1)
        # What its author sent along with the op before it was written without a sync in between.
        before = self._ops[op.place - 2] if op.place > 1 else op
        if before.source.client == client and needed <= before.deadline:
            op.deadline = min(op.deadline, before.deadline)

    # The order of play.

    def record(self) -> Recording:
        for op in self._ops:
            self._due[op.deadline].append(op)
        for place, op in enumerate(self._ops):
            self._place = place
            for waiting in self._due[place]:
                self._see(waiting)
            device = self._devices[op.source.client]
            if op.number <= device.sent:
                continue
            self._write_up_to(device, op)
            if op.source.in_log:
                self._write_ahead(device, place)
                self._sync(device)
        return Recording(History(tuple(self._steps)), self._inexact)

    def _see(self, op: _Op) -> None:
        """Let the author see what it had seen, now or never."""
        if self._must_see(op):
            self._sync(self._devices[op.source.client])

    def _must_see(self, op: _Op) -> bool:
        device = self._devices[op.source.client]
        return op.number > device.written and not self._sees(device, op)

    def _sees(self, device: _Device, op: _Op) -> bool:
        return all(self._seen(device, dot) for dot in op.needs)

    def _seen(self, device: _Device, dot: Dot) -> bool:
        return self._arrived.get(dot, len(self._ops)) < device.cursor

    def _write_up_to(self, device: _Device, op: _Op) -> None:
        while device.written < op.number:
            self._write(device)

    def _write_ahead(self, device: _Device, place: int) -> None:
        """What follows in the log by the same author goes along, unless somebody syncs between."""
        for after, op in enumerate(self._ops[place + 1 :], place + 1):
            if op.source.client != device.ops[0].source.client or not op.source.in_log:
                return
            if any(self._must_see(waiting) for waiting in self._due[after]):
                return
            if op.number > device.written:
                if not self._sees(device, op):
                    return
                self._write_up_to(device, op)

    def _sync(self, device: _Device) -> None:
        harmed = list(self._harmed(device))
        self._let_others_see(device, harmed)
        for op in harmed:
            while device.written < op.number and self._sees(device, device.ops[device.written]):
                self._write(device)
        for op in device.ops[device.sent : device.written]:
            self._arrived[op.dot] = len(self._arrivals)
            self._arrivals.append(op)
        device.sent, device.cursor = device.written, len(self._arrivals)
        self._steps.append(Sync(device.ops[0].source.client))

    def _let_others_see(self, device: _Device, harmed: Sequence[_Op]) -> None:
        """Before a sync sends ops ahead of their place, whoever had not seen them syncs first."""
        going = [*device.ops[device.sent : device.written], *harmed]
        last = max((op.place for op in going), default=0)
        for place in range(self._place, last):
            for waiting in self._due[place]:
                other = self._devices[waiting.source.client]
                ready = self._arrived.keys() >= waiting.needs
                if other is not device and ready and self._must_see(waiting):
                    self._sync(other)

    def _harmed(self, device: _Device) -> Iterator[_Op]:
        """Ops still to be written that had not seen what a sync would now show to their author."""
        client = device.ops[0].source.client
        news: dict[Key, list[Dot]] = defaultdict(list)
        for op in self._arrivals[device.cursor :]:
            if op.source.client != client:
                for key in op.seen:
                    news[key].append(op.dot)
        if not news:
            return
        for op in device.ops[device.written :]:
            if any(
                dot.n > seen.get(dot.client, 0)
                for key, seen in op.seen.items()
                for dot in news.get(key, ())
            ):
                yield op

    def _write(self, device: _Device) -> None:
        op = device.ops[device.written]
        device.written += 1
        exact = all(self._view(device, op, key) == seen for key, seen in op.seen.items())
        changes: list[Change] = []
        for change in op.source.changes:
            if isinstance(change, Patch) and self._brings_back(change):
                change, exact = self._as_put(change), False
            changes.append(self._told(change))
        self._inexact += not exact
        self._steps.append(Write(op.source.client, op.source.stamps, tuple(changes)))

    def _view(self, device: _Device, op: _Op, key: Key) -> dict[str, int]:
        """The last op of each other client on this record that the device sees now."""
        view: dict[str, int] = {}
        for client, numbers in self._touched[key].items():
            if client != op.source.client:
                # A client's ops arrive in order, so that those seen are the first of them.
                seen = bisect_left(
                    numbers, True, key=lambda n: not self._seen(device, Dot(client, n))
                )
                if seen:
                    view[client] = numbers[seen - 1]
        return view

    # What is told of a change.

    def _told(self, change: Change) -> Change:
        match change:
            case Put() | Patch():
                fields = self._values.of(change.fields)
                return type(change)(change.collection, change.id, {}, fields)
            case Delete():
                return Delete(change.collection, change.id, {})
            case Event():
                return Event(change.type, self._values.of(change.payload))
            case Resolve():
                return Resolve(self._renamed(change.conflict_id))
            case Erase():
                raise AssertionError("an erasure is no device's, and is not played again")

    def _renamed(self, id_: str) -> str:
        """A conflict's id names the loser's number, which in a play counts from 1 without holes."""
        if id_ not in self._lost:
            return id_
        key, name, loser, _ = self._lost[id_]
        ops = self._devices[loser.client].ops
        number = next((op.number for op in ops if op.source.n == loser.n), loser.n)
        return conflict_id(Stamp(0, loser.client, number), *key, name)

    def _covered(self, change: Patch) -> list[checkers.Write]:
        """The writes of the record that the patch had seen."""
        return [
            checkers.Write(_key(other), Stamp(at, client, n), other)
            for client, numbers in self._touched[_key(change)].items()
            for n in numbers[: bisect_right(numbers, change.context.get(client, 0))]
            for other, at in self._by_dot[Dot(client, n)].source.dated
            if isinstance(other, RecordChange) and _key(other) == _key(change)
        ]

    def _brings_back(self, change: Patch) -> bool:
        newest = max(self._covered(change), key=lambda write: write.stamp, default=None)
        return newest is not None and isinstance(newest.change, Delete)

    def _as_put(self, change: Patch) -> Put:
        alive = [w for w in self._covered(change) if not isinstance(w.change, Delete)]
        fields = checkers.model_state(alive).get(_key(change)) or {}
        return Put(change.collection, change.id, change.context, {**fields, **change.fields})


def _key(change: RecordChange | Resolve) -> Key:
    if isinstance(change, Resolve):
        return RESOLVED, change.conflict_id
    return change.collection, change.id


def _keys(changes: Sequence[Change]) -> list[Key]:
    return [_key(change) for change in changes if not isinstance(change, Event | Erase)]


class _Values:
    """Values as they are; or with a key, digests, which only show what is equal."""

    def __init__(self, key: bytes | None) -> None:
        self._key = key

    def of(self, fields: dict[str, Value]) -> dict[str, Value]:
        if self._key is None:
            return fields
        return {
            name: blake2b(canonical(value), digest_size=DIGEST_BYTES, key=self._key).hexdigest()
            for name, value in fields.items()
        }
