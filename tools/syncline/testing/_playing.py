"""Playing a history in memory and in virtual time, through the real client and server engines.

It takes milliseconds, so that a property can play hundreds. The files, sockets and processes that
``syncline replay`` plays through are left out; the checkers that look at the end are the same as
those of simulated worlds.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from syncline.client._core import Core
from syncline.client._database import Database
from syncline.client._engine import ClientEngine, Reconnect
from syncline.client._session import Session
from syncline.server import (
    Close,
    Connected,
    Disconnected,
    Drained,
    Input,
    MemoryStore,
    Received,
    Send,
    ServerEngine,
)
from syncline.sync import Conflict, Delete, Entry, Event, Patch, Put, Record, Resolve

from . import _checkers as checkers
from ._checkers import Violation
from ._clock import START_US
from ._histories import History, Sync, Write

SESSION = "history"
ROUND_TRIP_US = 1_000
ROUND_TRIPS_MAX = 10_000
ALL = 1 << 30

Shown = dict[tuple[str, str], dict[str, Any]]
"""The fields of each record that shows, by collection and id."""


@dataclass(frozen=True, slots=True)
class Played:
    """What became of a history once every device had synced: equal everywhere, or a violation."""

    records: Shown
    conflicts: tuple[Conflict, ...]
    entries: tuple[Entry, ...]
    records_by_device: dict[str, Shown]
    violations: tuple[Violation, ...]


def play_history(history: History) -> Played:
    """Play it to its end, let every device sync, and check every promise.

    A write that the replica itself refuses (a patch of a record that is not there) raises what the
    replica raises: such a history could not have happened.
    """
    stage = _Stage(history)
    try:
        return stage.play()
    finally:
        stage.close()


class _Stage:
    def __init__(self, history: History) -> None:
        self._history = history
        self._random = random.Random(0)
        # No write may lie in the future of the server's clock, or it would be stamped again.
        latest = max((max(write.stamps) for write in history.writes), default=0)
        self._now = max(START_US, latest + 1)
        self._store = MemoryStore()
        self._server = ServerEngine(self._store, None)
        self._conn = 0
        self._cores = {name: self._core(name) for name in history.devices}

    def _core(self, name: str) -> Core:
        database = Database(Path(name), factory=_in_memory, on_disk=False)
        core = Core(
            database,
            clock=lambda: self._now,
            random_bytes=self._random.randbytes,
            new_client_id=lambda: self._random.randbytes(8).hex(),
            outbox_ops_max=len(self._history.steps) + 1,
        )
        core.make(name)
        core.ensure_session(SESSION)
        return core

    def close(self) -> None:
        for core in self._cores.values():
            core.database.close()
        self._store.close()

    def play(self) -> Played:
        for step in self._history.steps:
            match step:
                case Write():
                    self._write(step)
                case Sync(name):
                    self._sync(self._cores[name])
        # One round to send everything, one to take it.
        for core in [*self._cores.values()] * 2:
            self._sync(core)
        return self._result()

    def _write(self, step: Write) -> None:
        session = Session(self._cores[step.device], SESSION)
        with session.transaction():
            for change, at in zip(step.changes, step.stamps, strict=True):
                match change:
                    case Put():
                        session.put(change.collection, change.id, change.fields, updated_at=at)
                    case Patch():
                        session.patch(change.collection, change.id, change.fields, updated_at=at)
                    case Delete():
                        session.delete(change.collection, change.id, updated_at=at)
                    case Event():
                        session.append(change.type, change.payload, updated_at=at)
                    case Resolve():
                        resolve_as_it_stands(session, change.conflict_id, step.device)

    def _sync(self, core: Core) -> None:
        assert core.acquire_lease(), "a history has one process per device"
        while True:
            try:
                self._connect(core)
                break
            except Reconnect as ended:
                assert ended.at_once, f"a sync ended early: {ended}"
        core.release_lease()

    def _connect(self, core: Core) -> None:
        """One connection, until the device has sent all it had and taken all there is."""
        self._conn += 1
        engine = ClientEngine(core, token=None, random_bytes=self._random.randbytes)
        waiting: list[Input] = [Connected(self._conn, "history")]
        engine.start(self._now)
        try:
            for _ in range(ROUND_TRIPS_MAX):
                waiting += [Received(self._conn, data) for data in engine.take_output()]
                if not waiting and self._has_synced(core, engine):
                    return
                self._now += ROUND_TRIP_US
                outputs = self._server.process(waiting, self._now)
                waiting = []
                for output in outputs:
                    assert not isinstance(output, Close), f"the server hung up: {output.reason}"
                    if isinstance(output, Send):
                        waiting.append(Drained(self._conn, len(output.data)))
                        engine.receive(output.data, self._now)
            raise AssertionError(f"{core.client()} does not get done syncing")
        finally:
            self._server.process([Disconnected(self._conn)], self._now)

    def _has_synced(self, core: Core, engine: ClientEngine) -> bool:
        head = self._store.head(SESSION)
        at_head = core.shown_seq(SESSION) == (0 if head is None else head.seq)
        return engine.settled_down and at_head and not core.pending_count(None)

    # The end.

    def _result(self) -> Played:
        store = self._store
        if store.head(SESSION) is None:
            return Played({}, (), (), {name: {} for name in self._cores}, ())
        part = store.snapshot(SESSION, b"", "", 1, ALL, ALL)
        states = {(row.collection, row.id): Record.decode(row.state).visible for row in part.rows}
        records = {key: fields for key, fields in states.items() if fields is not None}
        shown = {name: _shown(core) for name, core in self._cores.items()}
        rows = store.entries(SESSION, 0, ALL, ALL)
        entries = tuple(Entry.decode(row.entry) for row in rows)
        violations = [
            *checkers.check_chain(entries, part.head.genesis, [row.hash for row in rows]),
            *self._check(entries, states),
            *_check_equal(records, shown),
        ]
        conflicts = tuple(one for one in part.conflicts if isinstance(one, Conflict))
        return Played(records, conflicts, entries, shown, tuple(violations))

    def _check(
        self, entries: tuple[Entry, ...], states: dict[tuple[str, str], dict[str, Any] | None]
    ) -> Iterator[Violation]:
        yield from checkers.check_once(entries)
        yield from checkers.check_causal(entries)
        yield from checkers.check_atomic_events(entries)
        yield from checkers.check_model(entries, states)
        yield from checkers.check_nothing_lost(entries, states, checkers.lost_values(entries))
        if len(entries) != len(self._history.writes):
            story = f"the log has {len(entries)} of {len(self._history.writes)} writes"
            yield Violation("durable", story)


def resolve_as_it_stands(session: Session, conflict_id: str, client: str) -> None:
    """Close a conflict and change nothing else: what was put back is a change of its own."""
    loser = next((c.loser.client for c in session.conflicts() if c.id == conflict_id), "")
    session.resolve_conflict(conflict_id, "remote" if loser == client else "local")


def _check_equal(records: Shown, shown: dict[str, Shown]) -> Iterator[Violation]:
    for name, mine in shown.items():
        for key in sorted(mine.keys() | records.keys()):
            if mine.get(key) != records.get(key):
                story = f"{name} shows {mine.get(key)} as {key}, the server {records.get(key)}"
                yield Violation("convergent", story)


def _in_memory(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)


def _shown(core: Core) -> Shown:
    with core.database.reading() as db:
        rows = db.execute(
            "SELECT r.collection, r.id, r.state FROM syncline_records r JOIN syncline_sessions s"
            " ON s.gen = r.gen WHERE s.id=? AND r.alive=1",
            (SESSION,),
        ).fetchall()
    return {(collection, id_): Record.decode(state).fields for collection, id_, state in rows}
