"""A world from one seed: devices, sessions, a server, faults, and what must be true of them.

Three acts. In the first, apps write, devices come and go, and faults strike. In the second the
faults have ended, and everything must drain and agree within a bounded time. In the third the
checkers look at all of it. A promise may break in any act.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from syncline.server import Principal, Tokens
from syncline.sync import DiskFull

from ._app import App
from ._checkers import Violation
from ._clock import START_US, Scheduler
from ._device import Device
from ._disk import COMMIT_FAULTS
from ._server import SimServer
from ._verdict import verdict
from ._watching import Watch

ACT_US = 60_000_000
LATE_US = 4_000_000
DRAIN_US = 240_000_000
CALM_US = 20_000_000
"""Longer than the client's watchdog waits: whoever has nothing to do stays connected."""
FILES_EVERY = 10
"""Every so many worlds has real files."""
STEPS_MAX = 60_000

FAULTS = (
    "cut",
    "half-open",
    "stall",
    "partition",
    "crash",
    "power",
    "commit error",
    "disk full",
    "server crash",
    "server disk full",
    "restore",
    "clock step",
    "clock frozen",
    "clock far ahead",
    "clone",
    "replica restored",
    "slow reader",
    "said twice",
    "lost frame",
    "late welcome",
    "server commit unknown",
    "server clock",
)


@dataclass(frozen=True, slots=True)
class Options:
    """What a world is made of.

    ``faults`` None: a mix drawn by the seed; () for none at all. ``files``: whether disks are real
    files with power cuts that tear them; None for every tenth seed.
    """

    devices: int | None = None
    faults: tuple[str, ...] | None = None
    force: tuple[str, ...] = ()
    writes: int = 40
    files: bool | None = None


@dataclass(slots=True)
class Result:
    """What became of a world."""

    seed: int
    violations: list[Violation] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    ops: int = 0
    entries: int = 0
    virtual_us: int = 0
    trace: list[str] = field(default_factory=list)


class World:
    """One seed's history. ``run`` plays it."""

    def __init__(self, seed: int, options: Options) -> None:
        self.options = options
        self.scheduler = Scheduler(seed)
        self.result = Result(seed)
        on_files = seed % FILES_EVERY == 0 if options.files is None else options.files
        self._folder = TemporaryDirectory(prefix="syncline-world-") if on_files else None
        rng = self.scheduler.random
        self.kinds = self._draw_faults()
        count = options.devices or rng.randint(2, 4)
        self.sessions = tuple(f"s{place}" for place in range(rng.randint(1, 2)))
        tokens = Tokens(
            {
                "open": Principal("owner"),
                "narrow": Principal("guest", frozenset(self.sessions[:1])),
            }
        )
        self._faults_ended = False
        self.watch = Watch(self._broken, self._tell)
        self.server = SimServer(self.scheduler, tokens, rng.randbytes(8).hex(), self._fault)
        self.server.store.on_commit = self.watch.committed
        self.devices: list[Device] = []
        self.apps: dict[str, App] = {}
        self.allowed_by_name: dict[str, tuple[str, ...]] = {}
        # A guest may open one of two sessions, and writes to the other one all the same, or not.
        guest = count - 1 if len(self.sessions) > 1 and rng.random() < 0.4 else None
        told = rng.random() < 0.5
        for place in range(count):
            narrow = place == guest
            self._add_device(
                f"d{place}",
                "narrow" if narrow else "open",
                self.sessions[:1] if narrow and not told else self.sessions,
            )

    def _draw_faults(self) -> tuple[str, ...]:
        if self.options.faults is not None:
            drawn = self.options.faults
        else:
            drawn = tuple(kind for kind in FAULTS if self.scheduler.chance(0.3))
        return (*drawn, *(kind for kind in self.options.force if kind not in drawn))

    def allowed(self, device: Device) -> tuple[str, ...]:
        """The sessions that it may open."""
        return self.allowed_by_name[device.name]

    def _add_device(self, name: str, token: str, written: tuple[str, ...]) -> Device:
        rng = self.scheduler.random
        device = Device(
            name,
            self.scheduler,
            self.server,
            token=token,
            durability="normal" if rng.random() < 0.15 else "full",
            watched=self.sessions,
            on_fault=self._fault,
            watch=self.watch,
            folder=None if self._folder is None else Path(self._folder.name),
        )
        device.clock.skew_us = rng.choice((0, 0, 0, -90_000_000, 20_000_000, 45_000_000))
        device.clock.drift_ppm = rng.choice((0, 0, 200, -200))
        self.devices.append(device)
        self.allowed_by_name[name] = self.sessions[:1] if token == "narrow" else self.sessions
        self.apps[name] = App(name, written, rng)
        return device

    # The three acts.

    def run(self) -> Result:
        rng = self.scheduler.random
        for device in self.devices:
            device.start()
            for _ in range(self.options.writes // len(self.devices)):
                self.scheduler.after(rng.randint(0, ACT_US), partial(self._write, device))
        for kind in self.kinds:
            for _ in range(rng.randint(1, 3)):
                at = rng.randint(ACT_US // 20, ACT_US)
                self.scheduler.after(at, partial(self._strike, kind))
            if self.scheduler.chance(0.3):
                # Late, so that nothing that comes after may hide what it did.
                at = rng.randint(ACT_US - LATE_US, ACT_US)
                self.scheduler.after(at, partial(self._strike, kind))
        for kind in self.options.force:
            self.scheduler.after(ACT_US * 2 // 3, partial(self._strike, kind))
        played = self.scheduler.run(until=START_US + ACT_US, steps_max=STEPS_MAX)
        self._end_faults()
        drained = self.scheduler.run(
            until=self.scheduler.now + DRAIN_US, steps_max=STEPS_MAX, done=self._is_quiet
        )
        if not (played and drained and self._is_quiet()):
            self._broken("live", self._why_not_quiet(livelock=not (played and drained)))
        else:
            self._keep_calm()
            for violation in verdict(self):
                self._broken(violation.promise, violation.story)
        self.result.steps = self.scheduler.steps
        self.result.virtual_us = self.scheduler.now - START_US
        self.result.ops = sum(len(app.written) for app in self.apps.values())
        return self.result

    def _keep_calm(self) -> None:
        """Where there is nothing to do, nothing happens."""
        before = {device.name: device.connections for device in self.devices}
        self.scheduler.run(until=self.scheduler.now + CALM_US, steps_max=STEPS_MAX)
        for device in self.devices:
            if device.connections != before[device.name]:
                self._broken("live", f"{device.name} connects again with nothing to do")
        if not self._is_quiet():
            self._broken("live", self._why_not_quiet(livelock=False))

    def close(self) -> None:
        """Close what is open, and remove the files."""
        for device in self.devices:
            if device.core is not None:
                device.core.database.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _fault(self, kind: str) -> None:
        self.result.faults[kind] += 1
        self._tell(f"fault: {kind}")

    def _tell(self, what: str) -> None:
        seconds = (self.scheduler.now - START_US) / 1e6
        self.result.trace.append(f"{seconds:9.3f} {what}")

    def _broken(self, promise: str, story: str) -> None:
        self._tell(f"BROKEN {promise}: {story}")
        self.result.violations.append(Violation(promise, story))

    def _write(self, device: Device) -> None:
        core = device.core
        if core is None:
            return

        def act() -> None:
            try:
                did = self.apps[device.name].act(core)
            except DiskFull:
                self._tell(f"{device.name}: disk full, told so")
                return
            self._tell(f"{device.name}: {did}")

        device.run(act)
        self.watch.observe(device)

    # Faults.

    def _strike(self, kind: str) -> None:
        if self._faults_ended:
            return
        device = self.scheduler.random.choice(self.devices)
        name = "_strike_" + kind.replace(" ", "_").replace("-", "_")
        strike: Callable[[Device], bool] = getattr(self, name)
        if strike(device):
            self._fault(kind)

    def _strike_cut(self, device: Device) -> bool:
        return device.wire is not None and device.wire.cut()

    def _strike_half_open(self, device: Device) -> bool:
        return device.wire is not None and device.wire.half_open()

    def _strike_said_twice(self, device: Device) -> bool:
        if device.wire is not None:
            device.wire.double = self.scheduler.between(1, 8)
        return False  # Counted when it strikes.

    def _strike_lost_frame(self, device: Device) -> bool:
        if device.wire is not None:
            device.wire.lose_up = True
        return False

    def _strike_late_welcome(self, device: Device) -> bool:
        device.late_welcome = True
        if device.wire is not None:
            device.wire.cut()  # It comes with the next connection.
        return False

    def _strike_stall(self, device: Device) -> bool:
        late = self.scheduler.between(500_000, 20_000_000)
        return device.wire is not None and device.wire.stall(late)

    def _strike_slow_reader(self, device: Device) -> bool:
        if device.wire is None:
            return False
        device.wire.slow_us = self.scheduler.between(100_000, 2_000_000)
        return True

    def _strike_partition(self, device: Device) -> bool:
        return device.partition(self.scheduler.now + self.scheduler.between(1_000_000, 30_000_000))

    def _arm(self, device: Device, word: str) -> bool:
        kinds = [kind for kind in COMMIT_FAULTS if kind.startswith(word)]
        device.disk.arm(self.scheduler.random.choice(kinds), self.scheduler.between(0, 3))
        return False  # Counted when it strikes.

    def _strike_crash(self, device: Device) -> bool:
        return self._arm(device, "crash")

    def _strike_power(self, device: Device) -> bool:
        if device.durability == "normal":
            self.watch.file_went_back(device.name)
        return self._arm(device, "power")

    def _strike_commit_error(self, device: Device) -> bool:
        return self._arm(device, "error")

    def _strike_disk_full(self, device: Device) -> bool:
        device.disk.full = True

        def free() -> None:
            device.disk.full = False

        self.scheduler.after(self.scheduler.between(200_000, 5_000_000), free)
        return False

    def _strike_server_crash(self, device: Device) -> bool:
        self.server.store.armed = self.scheduler.random.choice(
            ("server crash before", "server crash after")
        )
        return False

    def _strike_server_disk_full(self, device: Device) -> bool:
        self.server.store.armed = "server disk full"
        return False

    def _strike_server_commit_unknown(self, device: Device) -> bool:
        self.server.store.armed = "server commit unknown"
        return False

    def _strike_restore(self, device: Device) -> bool:
        self.server.back_up()

        def restore() -> None:
            if self._faults_ended:
                return
            self.watch.server_went_back = True
            if self.server.restore():
                self._fault("restore")

        self.scheduler.after(self.scheduler.between(1_000_000, 20_000_000), restore)
        return False

    def _strike_server_clock(self, device: Device) -> bool:
        """A day ahead for a while: what is stamped then stays, and must stay open to edits.

        Not where the server is restored as well: an op that it forgot is then too far ahead, its
        author stamps it again, and who had seen it before had seen another stamp.
        """
        if "restore" in self.kinds:
            return False
        self.server.set_clock(86_400_000_000)
        self.scheduler.after(
            self.scheduler.between(3_000_000, 10_000_000), lambda: self.server.set_clock(0)
        )
        return True

    def _strike_clock_step(self, device: Device) -> bool:
        device.clock.skew_us += self.scheduler.random.choice(
            (-3_600_000_000, -5_000_000, 5_000_000, 50_000_000, 86_400_000_000)
        )
        return True

    def _strike_clock_frozen(self, device: Device) -> bool:
        device.clock.freeze(True)
        self.scheduler.after(
            self.scheduler.between(1_000_000, 20_000_000), lambda: device.clock.freeze(False)
        )
        return True

    def _strike_clock_far_ahead(self, device: Device) -> bool:
        device.clock.skew_us = 73 * 365 * 86_400_000_000
        self.scheduler.after(
            self.scheduler.between(5_000_000, 30_000_000),
            lambda: setattr(device.clock, "skew_us", 0),
        )
        return True

    def _strike_clone(self, device: Device) -> bool:
        if len(self.devices) >= 7 or device.core is None:
            return False
        name = f"{device.name}c{len(self.devices)}"
        other = self._add_device(name, device.token or "", self.apps[device.name].sessions)
        device.disk.copy_to(other.disk)
        other._life = 1
        self.watch.copied |= {device.name, name}
        if device.name in self.watch.went_back:
            self.watch.file_went_back(name)
        other.start()
        return True

    def _strike_replica_restored(self, device: Device) -> bool:
        if not device.disk.older:
            device.disk.keep_copy()
            self.scheduler.after(
                self.scheduler.between(1_000_000, 20_000_000),
                lambda: self._strike("replica restored"),
            )
            return False
        device.crash()
        self.watch.file_went_back(device.name)
        return device.disk.restore()

    def _end_faults(self) -> None:
        self._faults_ended = True
        self.server.restart()
        self.server.store.armed = None
        self.server.set_clock(0)
        for device in self.devices:
            device.disk.disarm()
            device.partitioned_until = 0
            device.clock.freeze(False)
            if device.wire is not None:
                device.wire.lose_up, device.wire.double = False, 0
            # Nothing but a half-open wire needs help: what is late comes, what was lost is missed.
            if device.wire is not None and device.wire.is_muted:
                device.wire.cut("the faults have ended")
                device.hang_up()
            if device.core is None:
                device.start()
            device.hurry()

    # The end.

    def _is_quiet(self) -> bool:
        if not self.server.up:
            return False
        for device in self.devices:
            core = device.core
            if core is None or not device.online:
                return False
            for session in self.allowed(device):
                head = self.server.store.head(session)
                seq = 0 if head is None else head.seq
                if session not in core.session_ids():
                    if seq:
                        return False
                    continue
                state = core._read(session)
                if state.boot is not None or state.seq != seq:
                    return False
            if core.pending_count(self.allowed(device)):
                return False
        return True

    def _why_not_quiet(self, *, livelock: bool) -> str:
        stories = []
        for device in self.devices:
            core = device.core
            if core is None:
                stories.append(f"{device.name} is down")
                continue
            link = "online" if device.online else f"offline ({device.fatal})"
            states = ", ".join(
                f"{s.id} at {s.seq}{' booting' if s.boot is not None else ''}"
                for s in core.states()
            )
            stories.append(f"{device.name} {link}, {core.pending_count(None)} pending, {states}")
        heads = {s: h.seq for s in self.sessions if (h := self.server.store.head(s)) is not None}
        return f"{'livelock' if livelock else 'stalled'}: heads {heads}; {'; '.join(stories)}"
