"""A device in a simulated world: the real core and engine, a wrong clock, an app, a bad network.

It does what the link's thread does, as events in virtual time: take the lease, connect, feed the
engine, reconnect after a pause. A crash throws the core away; a restart opens the disk's image.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from syncline.client._core import Core, LeaseLost
from syncline.client._database import CommitUnknown, Database, Durability
from syncline.client._engine import ClientEngine, Reconnect
from syncline.sync import DiskFull, SyncError

from ._clock import Scheduler
from ._disk import Crash, Disk, MemoryDisk
from ._file_disk import FileDisk
from ._network import Wire
from ._server import SimServer
from ._watching import Watch

BACKOFF_US = (500_000, 4_000_000)
RESTART_US = (50_000, 5_000_000)
LEASE_RETRY_US = 1_000_000


class DeviceClock:
    """The device's idea of the time: off, drifting, stepping, or standing still."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._skew_us = 0
        self.drift_ppm = 0
        self.changed_at = scheduler.now
        self._began = scheduler.now
        self._frozen_at: int | None = None

    @property
    def skew_us(self) -> int:
        return self._skew_us

    @skew_us.setter
    def skew_us(self, skew_us: int) -> None:
        self._skew_us = skew_us
        self.changed_at = self._scheduler.now

    def __call__(self) -> int:
        if self._frozen_at is not None:
            return self._frozen_at
        elapsed = self._scheduler.now - self._began
        return max(1, self._scheduler.now + self.skew_us + elapsed * self.drift_ppm // 1_000_000)

    def freeze(self, frozen: bool) -> None:
        if frozen == (self._frozen_at is not None):
            return
        self._frozen_at = self() if frozen else None
        self.changed_at = self._scheduler.now


class Device:
    """One replica and the process that has it open."""

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        server: SimServer,
        *,
        token: str | None,
        durability: Durability,
        watched: tuple[str, ...],
        on_fault: Callable[[str], None],
        watch: Watch,
        folder: Path | None = None,
    ) -> None:
        """``folder``: where its disk lies as real files; None keeps it in memory."""
        self.name = name
        self._scheduler = scheduler
        self._server = server
        self.token = token
        self.durability: Durability = durability
        self._watched = watched
        self._watch = watch
        self._on_fault = on_fault
        self.clock = DeviceClock(scheduler)
        self.disk: Disk[Any] = (
            MemoryDisk(scheduler.random, on_fault)
            if folder is None
            else FileDisk(scheduler.random, on_fault, folder, name)
        )
        self.core: Core | None = None
        self._engine: ClientEngine | None = None
        self._wire: Wire | None = None
        self._life = 0
        self.partitioned_until = 0
        self.fatal: SyncError | None = None
        self.welcomed_at = 0
        self.connections = 0
        self.late_welcome = False
        self._welcome: bytes | None = None

    # Its process.

    def start(self) -> None:
        """The process begins: open the replica, then try to connect."""
        if self.core is not None:
            return
        self._life += 1
        try:
            database = Database(
                Path(self.name),
                durability=self.durability,
                factory=self.disk.connect,
                on_disk=False,
            )
            core = Core(
                database,
                clock=self.clock,
                random_bytes=self._scheduler.random.randbytes,
                new_client_id=lambda: self._scheduler.random.randbytes(8).hex(),
                outbox_ops_max=10_000,
            )
            core.make(self.name if self._life == 1 else None)
        except (Crash, DiskFull, CommitUnknown):
            self._restart_later()
            return
        self.core = core
        core.on_local_write = self._wrote
        for session in self._watched:
            core.watchers.add(session, None, lambda told: self._watch.told(self))
        self._watch.observe(self)
        self._later(self._scheduler.between(0, 200_000), self._try_to_connect)

    def crash(self) -> None:
        """The process is gone, with all that it held in memory."""
        self.hang_up()
        if self.core is not None:
            lost, self.core.database._connection = self.core.database._connection, None
            if lost is not None:
                # What it still does goes to files that nobody opens again: the disk has its image.
                lost.close()
            self.core = None
        self._restart_later()

    def _restart_later(self) -> None:
        life = self._life

        def restart() -> None:
            if self._life == life and self.core is None:
                self.start()

        self._scheduler.after(self._scheduler.between(*RESTART_US), restart)

    def _later(self, delay_us: int, call: Callable[[], None]) -> None:
        life = self._life

        def run() -> None:
            if self._life == life and self.core is not None:
                self.run(call)

        self._scheduler.after(delay_us, run)

    def run(self, call: Callable[[], None]) -> bool:
        """Do something in this process; False when it died of it."""
        try:
            call()
        except Crash:
            self.crash()
            return False
        return True

    # What the link's thread does.

    def _try_to_connect(self) -> None:
        assert self.core is not None
        if self._wire is not None:
            return
        try:
            if not self.core.acquire_lease():
                self._later(LEASE_RETRY_US, self._try_to_connect)
                return
        except (CommitUnknown, DiskFull):
            self._retry()
            return
        if self._scheduler.now < self.partitioned_until or not self._server.up:
            self._retry()
            return
        self._connect(self.core)

    def _retry(self) -> None:
        self._later(self._scheduler.between(*BACKOFF_US), self._try_to_connect)

    def _connect(self, core: Core) -> None:
        engine = ClientEngine(core, token=self.token, random_bytes=self._scheduler.random.randbytes)
        conn = 0
        wire = Wire(
            self._scheduler,
            to_server=lambda data: self._server.receive(conn, data),
            to_client=lambda data: self._on_wire(wire, lambda: self._received(data)),
            server_closed=lambda: self._server.closed(conn),
            client_closed=lambda reason: self._on_wire(wire, self._lost_connection),
            drained=lambda size: self._server.drained(conn, size),
        )
        self._engine, self._wire = engine, wire
        wire.on_fault = self._on_fault
        self.connections += 1
        conn = self._server.connect(wire)
        self._drive(lambda: engine.start(self._scheduler.now))
        self._tick_later()
        late = self._welcome
        if self.late_welcome and late is not None:
            self._on_fault("late welcome")
            self._on_wire(
                wire, lambda: self._drive(lambda: engine.receive(late, self._scheduler.now))
            )

    def _on_wire(self, wire: Wire, call: Callable[[], None]) -> None:
        if wire is self._wire:
            self.run(call)

    def _received(self, data: bytes) -> None:
        engine = self._engine
        assert engine is not None
        known = engine.welcome
        self._drive(lambda: engine.receive(data, self._scheduler.now))
        if engine.welcome is not known:
            self._welcome, self.welcomed_at = data, self._scheduler.now

    def _wrote(self, session: str) -> None:
        engine = self._engine
        if engine is not None:
            self._later(0, lambda: self._local_change(engine, session))

    def _local_change(self, engine: ClientEngine, session: str) -> None:
        if engine is self._engine:
            self._drive(lambda: engine.local_change(self._scheduler.now, session))

    def _drive(self, call: Callable[[], None]) -> None:
        """Feed the engine, send what it says, and reconnect when it asks for that."""
        engine, wire = self._engine, self._wire
        assert engine is not None and wire is not None
        try:
            call()
        except Reconnect as ended:
            self._watch.tell(f"{self.name} connects again: {ended}")
            self.hang_up()
            self._later(
                1_000 if ended.at_once else self._scheduler.between(*BACKOFF_US),
                self._try_to_connect,
            )
            return
        except LeaseLost:
            self.hang_up()
            self._later(LEASE_RETRY_US, self._try_to_connect)
            return
        except (CommitUnknown, DiskFull):
            self.hang_up()
            self._retry()
            return
        except SyncError as error:
            self.fatal = error
            self._watch.tell(f"{self.name} gives up: {error}")
            self.hang_up()
            self._later(30_000_000, self._try_to_connect)
            return
        for data in engine.take_output():
            wire.send_up(data)
        self._watch.observe(self)

    def _tick_later(self) -> None:
        engine = self._engine
        if engine is None:
            return

        def tick() -> None:
            if engine is self._engine:
                self._drive(lambda: engine.tick(self._scheduler.now))
                self._tick_later()

        self._later(max(1_000, engine.deadline() - self._scheduler.now), tick)

    def _lost_connection(self) -> None:
        self._engine = self._wire = None
        self._retry()

    def hang_up(self) -> None:
        wire, self._wire, self._engine = self._wire, None, None
        if wire is not None:
            wire.close_from_client()

    # Faults.

    @property
    def wire(self) -> Wire | None:
        return self._wire

    @property
    def connected(self) -> bool:
        return self._engine is not None

    @property
    def online(self) -> bool:
        """Connected with nothing under way. Whom the server has hung up on will connect again."""
        alive = self._wire is not None and self._wire.open and not self._wire.closing
        return alive and self._engine is not None and self._engine.settled_down

    def partition(self, until: int) -> bool:
        """No way to the server until then; what is open goes dead."""
        self.partitioned_until = max(self.partitioned_until, until)
        return self._wire is not None and self._wire.cut("partition")

    def hurry(self) -> None:
        """The faults have ended: connect, if not connected."""
        if self.core is not None and self._wire is None:
            self._later(1_000, self._try_to_connect)
