"""A world from one seed: devices, sessions, a server, faults, and what must be true of them.

Three acts. In the first, apps write, devices come and go, and faults strike. In the second the
faults have ended, and everything must drain and agree within a bounded time. In the third the
checkers look at all of it. A promise may break in any act.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from syncline.client._rows import session_rows
from syncline.server import Tokens
from syncline.sync import DiskFull, Entry, Record

from . import _checkers as checkers
from ._app import App, Written
from ._checkers import Violation
from ._clock import START_US, Scheduler
from ._device import Device
from ._disk import COMMIT_FAULTS
from ._server import SimServer

ACT_US = 60_000_000
DRAIN_US = 240_000_000
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
)


@dataclass(frozen=True, slots=True)
class Options:
    """What a world is made of. ``faults`` None: a mix drawn by the seed; () for none at all."""

    devices: int | None = None
    faults: tuple[str, ...] | None = None
    force: tuple[str, ...] = ()
    writes: int = 40


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
        rng = self.scheduler.random
        self.kinds = self._draw_faults()
        count = options.devices or rng.randint(2, 4)
        self.sessions = tuple(f"s{place}" for place in range(rng.randint(1, 2)))
        tokens = Tokens.single("open")
        self.server = SimServer(self.scheduler, tokens, rng.randbytes(8).hex(), self._fault)
        self.devices: list[Device] = []
        self.apps: dict[str, App] = {}
        self._heads: dict[tuple[str, int, int], bytes] = {}
        self._places: dict[tuple[str, str], tuple[int, int]] = {}
        self._receipts: dict[str, str] = {}
        self._healings: Counter[str] = Counter()
        self._copied: set[str] = set()
        self._may_go_back: set[tuple[str, str]] = set()
        self._went_back: set[str] = set()
        self._restored = False
        for place in range(count):
            self._add_device(f"d{place}")

    def _draw_faults(self) -> tuple[str, ...]:
        if self.options.faults is not None:
            drawn = self.options.faults
        else:
            drawn = tuple(kind for kind in FAULTS if self.scheduler.chance(0.3))
        return (*drawn, *(kind for kind in self.options.force if kind not in drawn))

    def _add_device(self, name: str) -> Device:
        rng = self.scheduler.random
        device = Device(
            name,
            self.scheduler,
            self.server,
            token="open",
            durability="normal" if rng.random() < 0.15 else "full",
            on_fault=self._fault,
            on_commit=self._observe,
            on_open=self._observe,
        )
        device.clock.skew_us = rng.choice((0, 0, 0, -90_000_000, 20_000_000, 45_000_000))
        device.clock.drift_ppm = rng.choice((0, 0, 200, -200))
        self.devices.append(device)
        self.apps[name] = App(name, self.sessions, rng)
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
            for violation in self._check():
                self._broken(violation.promise, violation.story)
        self.result.steps = self.scheduler.steps
        self.result.virtual_us = self.scheduler.now - START_US
        self.result.ops = sum(len(app.written) for app in self.apps.values())
        return self.result

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
        self._observe(device)

    # Faults.

    def _strike(self, kind: str) -> None:
        device = self.scheduler.random.choice(self.devices)
        name = "_strike_" + kind.replace(" ", "_").replace("-", "_")
        strike: Callable[[Device], bool] = getattr(self, name)
        if strike(device):
            self._fault(kind)

    def _strike_cut(self, device: Device) -> bool:
        return device.wire is not None and device.wire.cut()

    def _strike_half_open(self, device: Device) -> bool:
        return device.wire is not None and device.wire.half_open()

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
        if device._durability == "normal":
            self._went_back.add(device.name)
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

    def _strike_restore(self, device: Device) -> bool:
        self.server.back_up()

        def restore() -> None:
            if self.server.restore():
                self._restored = True
                self._fault("restore")

        self.scheduler.after(self.scheduler.between(1_000_000, 20_000_000), restore)
        return False

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
        other = self._add_device(name)
        device.disk.copy_to(other.disk)
        other._life = 1
        self._copied |= {device.name, name}
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
        self._went_back.add(device.name)
        return device.disk.restore()

    def _end_faults(self) -> None:
        self.server.restart()
        self.server.store.armed = None
        for device in self.devices:
            device.disk.disarm()
            device.partitioned_until = 0
            device.clock.freeze(False)
            if device.wire is not None:
                device.wire.cut("the faults have ended")
            if device.core is None:
                device.start()
            device.hurry()

    # Watching as it goes.

    def _observe(self, device: Device) -> None:
        """What must be true after every commit of a replica."""
        core = device.core
        if core is None:
            return
        with core.database.reading() as db:
            sessions = session_rows(db)
            (healings,) = db.execute("SELECT count(*) FROM syncline_notices").fetchone()
        if healings != self._healings[device.name]:
            self._healings[device.name] = healings
            self._tell(f"{device.name}: a notice (healed, cloned or stamped again)")
            self._may_go_back |= {(device.name, session.id) for session in sessions}
        for session in sessions:
            if session.hash is None or session.seq == 0:
                continue
            place = (session.epoch, session.seq)
            known = self._heads.setdefault((session.id, *place), session.hash)
            if known != session.hash:
                self._broken("dense", f"{session.id} at {place} means two things")
            before = self._places.get((device.name, session.id), (0, 0))
            if place < before:
                reported = (device.name, session.id) in self._may_go_back
                self._may_go_back.discard((device.name, session.id))
                if not reported and device.name not in self._went_back:
                    self._broken(
                        "monotonic", f"{device.name} went from {before} to {place} in {session.id}"
                    )
            self._places[device.name, session.id] = place

    # The end.

    def _is_quiet(self) -> bool:
        if not self.server.up:
            return False
        for device in self.devices:
            core = device.core
            if core is None or not device.online:
                return False
            for session in self.sessions:
                head = self.server.store.head(session)
                seq = 0 if head is None else head.seq
                if session not in core.session_ids():
                    if seq:
                        return False
                    continue
                state = core._read(session)
                if state.boot is not None or state.seq != seq:
                    return False
            if core.pending_count(None):
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

    def _check(self) -> Iterator[Violation]:
        store = self.server.store.inner
        for session in self.sessions:
            head = store.head(session)
            if head is None:
                continue
            rows = store.entries(session, 0, 1 << 30, 1 << 30)
            entries = [Entry.decode(row.entry) for row in rows]
            self.result.entries += len(entries)
            yield from checkers.check_chain(entries, head.genesis, [row.hash for row in rows])
            yield from checkers.check_once(entries)
            yield from checkers.check_causal(entries)
            yield from checkers.check_atomic_events(entries)
            states = self._server_state(session)
            shown = {key: Record.decode(data).visible for key, data in states.items()}
            yield from checkers.check_model(entries, shown)
            listed = checkers.lost_values(entries)
            yield from checkers.check_nothing_lost(entries, shown, listed)
            yield from self._check_convergent(session, states)
            yield from self._check_durable(session, entries)

    def _server_state(self, session: str) -> dict[tuple[str, str], bytes]:
        rows = self.server.store.inner.snapshot(session, b"", "", 1, 1 << 30, 1 << 30).rows
        return {(row.collection, row.id): row.state for row in rows}

    def _check_convergent(
        self, session: str, states: dict[tuple[str, str], bytes]
    ) -> Iterator[Violation]:
        conflicts = self._server_conflicts(session)
        for device in self.devices:
            assert device.core is not None
            with device.core.database.reading() as db:
                gens = {row.id: row.gen for row in session_rows(db)}
                if session not in gens:
                    continue
                rows = db.execute(
                    "SELECT collection, id, state, base FROM syncline_records WHERE gen=?",
                    (gens[session],),
                ).fetchall()
                open_ = db.execute(
                    "SELECT conflict FROM syncline_conflicts WHERE gen=? ORDER BY id",
                    (gens[session],),
                ).fetchall()
            mine = {(collection, id_): state for collection, id_, state, _ in rows}
            if mine != states:
                different = sorted(
                    key for key in mine.keys() | states.keys() if mine.get(key) != states.get(key)
                )
                yield Violation(
                    "convergent",
                    f"{device.name} differs in {session}: "
                    + "; ".join(
                        f"{key}: {_shown(mine.get(key))}, server {_shown(states.get(key))}"
                        for key in different[:2]
                    ),
                )
            if any(base is not None for *_, base in rows):
                yield Violation("convergent", f"{device.name} keeps a base with nothing pending")
            if [data for (data,) in open_] != conflicts:
                yield Violation("nothing silently lost", f"{device.name} lists other conflicts")

    def _server_conflicts(self, session: str) -> list[bytes]:
        part = self.server.store.inner.snapshot(session, b"", "", 1, 1 << 30, 1 << 30)
        return [conflict.encode() for conflict in sorted(part.conflicts, key=lambda c: c.id)]

    def _check_durable(self, session: str, entries: list[Entry]) -> Iterator[Violation]:
        """Every write that returned is in the log once, or refused and kept with its reason."""
        logged = {entry.salt.hex() for entry in entries}
        refused: set[str] = set()
        for device in self.devices:
            assert device.core is not None
            with device.core.database.reading() as db:
                refused |= {s.hex() for (s,) in db.execute("SELECT salt FROM syncline_refused")}
        for app in self.apps.values():
            for written in app.written:
                if written.session != session or written.receipt_id in logged | refused:
                    continue
                if written.device in self._went_back:
                    continue  # Its file itself went back to before the write.
                yield Violation("durable", f"{_told(written)} is neither in the log nor refused")


def _told(written: Written) -> str:
    return f"write {written.receipt_id[:8]} of {written.device} to {written.session}"


def _shown(data: bytes | None) -> Any:
    if data is None:
        return "nothing"
    record = Record.decode(data)
    return (record.visible, record.life, dict(record.vector))
