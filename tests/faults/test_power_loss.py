"""Power cuts in the middle of everything: on a replica's disk, and on the server's."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.client.wire import SECOND, Wire, state_of
from tests.faults.power import PowerCut, PowerDisk, WatchedModule

from syncline.cli.verify import verify_file
from syncline.client import Replica, Session
from syncline.client._database import Durability
from syncline.server import SqliteStore, _sqlite_file, _sqlite_store

CUTS = 12
LEASE_US = 11 * SECOND


@pytest.fixture(autouse=True)
def often_checkpointed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("syncline.client._database.WAL_BYTES_MAX", 64 << 10)
    monkeypatch.setattr("syncline.client._database.COMMITS_BETWEEN_WAL_CHECKS", 3)
    monkeypatch.setattr(_sqlite_store, "WAL_BYTES_MAX", 64 << 10)


def write_one(rng: random.Random, session: Session) -> str:
    """A write of any kind; its receipt's id once it has returned."""
    key = f"r{rng.randrange(9)}"
    text = "x" * rng.choice((3, 300, 6000))
    match rng.randrange(5):
        case 0:
            return session.append("said", {"text": text}).id
        case 1:
            return session.delete("notes", key).id
        case 2:
            with session.transaction() as receipt:
                session.put("notes", key, {"text": text})
                session.append("put", {"key": key})
            return receipt.id
    return session.put("notes", key, {"text": text}).id


def hang_up(wire: Wire) -> None:
    for line in list(wire._lines.values()):
        line.cut()


def check_once(wire: Wire, told: set[str]) -> None:
    """What was told is in the log, and nothing is there twice."""
    salts = [entry.receipt_id for entry in wire.log("s1")]
    assert len(salts) == len(set(salts))
    assert told - set(salts) == set()


class Device:
    """One device whose power goes again and again, at any statement."""

    def __init__(self, folder: Path, seed: int, durability: Durability, *, lies: bool = False):
        self._rng = random.Random(seed)
        self._folder = folder
        self._durability = durability
        self._lies = lies
        self._path = folder / "0.db"
        self.wire = Wire(folder=folder)
        self.told: list[str] = []
        self.lost: list[str] = []
        self.problems: list[object] = []
        self.checkpoints = 0
        self.unsynced_commits = 0

    def open(self) -> tuple[Replica, PowerDisk]:
        # Whoever held the lease before the cut is believed to hold it for ten seconds more.
        self.wire.now += LEASE_US
        disk = PowerDisk(self._path, self._rng, lies=self._lies)
        replica = Replica(
            self._path,
            clock=lambda: self.wire.now,
            durability=self._durability,
            connection_factory=disk.connect,
            random_bytes=self._rng.randbytes,
        )
        return replica, disk

    def live(self, number: int) -> None:
        """Until the next cut; then look at what it left, and go on from there."""
        target = self._folder / f"{number}.db"
        replica, disk = self.open()
        disk.arm(target)
        with pytest.raises(PowerCut):
            while True:
                self.told.append(write_one(self._rng, replica.session("s1")))
                if self._rng.random() < 0.1:
                    self.wire.sync(replica)
        hang_up(self.wire)
        replica.close()
        self.checkpoints += disk.checkpoints
        self.unsynced_commits += disk.unsynced_commits
        self._path = target
        self.problems += verify_file(target).all_problems()
        self._look_for_losses()

    def _look_for_losses(self) -> None:
        replica, _ = self.open()
        logged = {entry.receipt_id for entry in self.wire.log("s1")}
        known = [id_ in logged or replica._core.knows(bytes.fromhex(id_)) for id_ in self.told]
        replica.close()
        self.lost += [id_ for id_, there in zip(self.told, known, strict=True) if not there]
        self.told = [id_ for id_, there in zip(self.told, known, strict=True) if there]

    def finish(self) -> None:
        """With the power on for good, everything arrives, once."""
        replica, _ = self.open()
        other = self.wire.open("other")
        for one in (replica, other, replica):
            self.wire.sync(one)
        assert state_of(replica, "s1") == state_of(other, "s1") == self.wire.state("s1")
        check_once(self.wire, set(self.told))
        replica.close()
        self.wire.close()


@pytest.mark.parametrize("seed", range(3))
def test_with_full_durability_no_power_cut_takes_a_write_that_returned(
    tmp_path: Path, seed: int
) -> None:
    device = Device(tmp_path, seed, "full")
    for number in range(1, CUTS):
        device.live(number)
    device.finish()
    assert (device.lost, device.problems) == ([], [])
    assert device.checkpoints > 0 and len(device.told) > CUTS


def test_with_normal_durability_a_power_cut_takes_the_last_writes_at_most(tmp_path: Path) -> None:
    device = Device(tmp_path, 1, "normal")
    for number in range(1, 2 * CUTS):
        told_before, lost_before = list(device.told), len(device.lost)
        device.live(number)
        # What is gone is the end of what was written: nothing in the middle is missing.
        assert device.told[: len(told_before)] == told_before[: len(device.told)]
        assert device.problems == []
        assert lost_before <= len(device.lost)
    device.finish()
    assert device.lost != [] and device.unsynced_commits > 0


def test_a_disk_that_does_not_do_what_it_is_told_loses_writes_so_the_cuts_bite(
    tmp_path: Path,
) -> None:
    device = Device(tmp_path, 1, "full", lies=True)
    for number in range(1, 4):
        device.live(number)
    assert device.lost != []
    device.wire.close()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_thousand_power_cuts_take_no_write_that_returned(tmp_path: Path) -> None:
    for seed in range(100, 300):
        folder = tmp_path / str(seed)
        folder.mkdir()
        device = Device(folder, seed, "full")
        for number in range(1, 11):
            device.live(number)
        device.finish()
        assert (seed, device.lost, device.problems) == (seed, [], [])


@pytest.mark.parametrize("seed", range(2))
def test_no_power_cut_takes_from_a_server_what_any_client_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    wire = Wire(folder=tmp_path)
    replicas = [wire.open("ann"), wire.open("bob")]
    told: set[str] = set()
    path, checkpoints = tmp_path / "server0.db", 0
    for number in range(1, CUTS):
        disk = PowerDisk(path, rng)
        with monkeypatch.context() as patched:
            patched.setattr(_sqlite_file, "sqlite3", WatchedModule(disk))
            store = SqliteStore(path)
        wire.serve(store)
        path = tmp_path / f"server{number}.db"
        disk.arm(path)
        with pytest.raises(PowerCut):
            while True:
                wire.now += LEASE_US
                replica = rng.choice(replicas)
                told.add(write_one(rng, replica.session("s1")))
                wire.sync(replica)
                store.checkpoint()
        checkpoints += disk.checkpoints
        # Nobody is there to hear of it.
        wire._lines.clear()
        for replica in replicas:
            replica._core.on_local_write = None
        store.close()
        assert verify_file(path).all_problems() == []
        after = SqliteStore(path)
        for seq, hash_ in (cursor for replica in replicas for cursor in cursors(replica)):
            assert after.hash_at("s1", seq) == hash_, "a client knows more than the server"
        after.close()
    wire.serve(SqliteStore(path))
    for replica in (*replicas, *replicas):
        wire.now += LEASE_US
        wire.sync(replica)
    check_once(wire, told)
    assert state_of(replicas[0], "s1") == state_of(replicas[1], "s1") == wire.state("s1")
    assert [notice for replica in replicas for notice in replica.status().notices] == []
    assert checkpoints > 0
    wire.close()
    wire.store.close()
    assert verify_file(path).all_problems() == []


def cursors(replica: Replica) -> list[tuple[int, bytes]]:
    """Up to where this replica knows the log."""
    with replica._core.database.reading() as db:
        rows = db.execute("SELECT seq, hash FROM syncline_sessions WHERE hash IS NOT NULL")
        return [(seq, bytes(hash_)) for seq, hash_ in rows]
