"""The server in a simulated world: the real engine and store, with crashes and restores."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from syncline.server import (
    Close,
    Connected,
    Disconnected,
    Drained,
    Identity,
    Input,
    LogRow,
    MemoryStore,
    Received,
    Send,
    ServerEngine,
    SnapshotPart,
    Tick,
    Tokens,
    Transaction,
)
from syncline.sync import DiskFull, WriteUnknown

from ._clock import Scheduler
from ._disk import Crash
from ._network import Wire

GROUP_US = (0, 4_000)
"""How long a group gathers while the one before commits."""
PING_US = 40_000_000
"""The shell's pings notice a client that is gone without a word after so long."""


class FaultyStore:
    """A memory store whose transactions may fail or crash the server, before or after they commit.

    Its pages are small, so that a short history has many.
    """

    def __init__(self, store: MemoryStore, page_items: int) -> None:
        self.inner = store
        self._page_items = page_items
        self.armed: str | None = None
        self.on_fault: Callable[[str], None] = lambda kind: None
        self.on_commit: Callable[[MemoryStore], None] = lambda store: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def entries(self, session: str, after: int, bytes_max: int, items_max: int) -> list[LogRow]:
        return self.inner.entries(session, after, bytes_max, min(items_max, self._page_items))

    def snapshot(
        self,
        session: str,
        after: bytes,
        client: str,
        pending_from: int,
        bytes_max: int,
        items_max: int,
    ) -> SnapshotPart:
        items = min(items_max, self._page_items)
        return self.inner.snapshot(session, after, client, pending_from, bytes_max, items)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        armed, self.armed = self.armed, None
        with self.inner.transaction() as made:
            yield made
            if armed == "server crash before":
                self.on_fault(armed)
                raise Crash(armed)
            if armed == "server disk full":
                self.on_fault(armed)
                raise DiskFull("the simulated disk is full")
        self.on_commit(self.inner)
        if armed == "server crash after":
            self.on_fault(armed)
            raise Crash(armed)
        if armed == "server commit unknown":
            self.on_fault(armed)
            raise WriteUnknown("the simulated database answers no more")


class SimServer:
    """Gathers what arrives into groups, as the worker does, and hands the answers to the wires."""

    def __init__(
        self,
        scheduler: Scheduler,
        tokens: Tokens | None,
        store_id: str,
        on_fault: Callable[[str], None],
    ) -> None:
        self._scheduler = scheduler
        self._tokens = tokens
        self._on_fault = on_fault
        self._inputs: list[Input] = []
        self._wires: dict[int, Wire] = {}
        self._next_conn = 1
        self._busy = False
        self._backups: list[MemoryStore] = []
        self.clock_error_us = 0
        self.clock_changed_at = scheduler.now
        self.store = FaultyStore(MemoryStore(), scheduler.random.choice((2, 5, 1000)))
        self.store.inner._identity = Identity(store_id, 1)
        self.store.on_fault = on_fault
        self.up = True
        self._start()

    def _start(self) -> None:
        self._engine = ServerEngine(self.store, self._tokens, bootstrap_entries_min=12)

    @property
    def now(self) -> int:
        return self._scheduler.now + self.clock_error_us

    # The shell.

    def connect(self, wire: Wire) -> int:
        conn, self._next_conn = self._next_conn, self._next_conn + 1
        self._wires[conn] = wire
        self._put(Connected(conn, "sim"))
        return conn

    def receive(self, conn: int, data: bytes) -> None:
        if conn in self._wires:
            self._put(Received(conn, data))

    def drained(self, conn: int, size: int) -> None:
        if conn in self._wires:
            self._put(Drained(conn, size))

    def closed(self, conn: int) -> None:
        if self._wires.pop(conn, None) is not None:
            self._put(Disconnected(conn))

    def _put(self, item: Input) -> None:
        self._inputs.append(item)
        if not self._busy:
            self._busy = True
            self._scheduler.after(self._scheduler.between(*GROUP_US), self._work)

    def _work(self) -> None:
        self._busy = False
        if not self.up:
            self._inputs.clear()
            return
        inputs, self._inputs = self._inputs or [Tick()], []
        try:
            outputs = self._engine.process(inputs, self.now)
        except Crash:
            self.crash()
            return
        for output in outputs:
            match output:
                case Send(conn, data):
                    if (wire := self._wires.get(conn)) is not None:
                        wire.send_down(data)
                case Close(conn, _, reason):
                    if (wire := self._wires.pop(conn, None)) is not None:
                        wire.close_from_server(reason)
                case _:
                    pass
        due = self._engine.next_deadline()
        if due is not None:
            self._scheduler.after(max(1_000, due - self.now), self._tick)

    def _tick(self) -> None:
        if not self._busy and self.up:
            self._put(Tick())

    # Faults.

    def crash(self) -> bool:
        """The process dies; what was committed stays. It is back after a while."""
        if not self.up:
            return False
        self.up = False
        wires, self._wires = self._wires, {}
        self._inputs.clear()
        for wire in wires.values():
            wire.cut("the server died")
        self._scheduler.after(self._scheduler.between(10_000, 3_000_000), self.restart)
        return True

    def restart(self) -> None:
        if self.up:
            return
        self.up = True
        self._start()

    def set_clock(self, error_us: int) -> None:
        """The server's clock is wrong by so much, from now on."""
        if error_us != self.clock_error_us:
            self.clock_error_us, self.clock_changed_at = error_us, self._scheduler.now

    def back_up(self) -> bool:
        self._backups.append(copy.deepcopy(self.store.inner))
        return True

    def restore(self) -> bool:
        """Put an older copy in the store's place, in a new epoch; whether that lost anything."""
        if not self._backups:
            return False
        backup = copy.deepcopy(self._scheduler.random.choice(self._backups))
        lost = backup._sessions != self.store.inner._sessions
        identity = self.store.inner.identity()
        backup._identity = Identity(identity.store_id, identity.epoch + 1)
        self.crash()
        self.store.inner = backup
        return lost
