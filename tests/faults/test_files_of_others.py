"""Side files that are missing, rotten or of somebody else; a disk that fills; a page that rots."""

from __future__ import annotations

import random
import resource
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.faults.killing import free_port
from tests.faults.nursery import Nursery
from tests.system.support import World, eventually, query

from syncline.cli.verify import verify_file
from syncline.client import Replica
from syncline.server import SqliteStore, SyncServer
from syncline.sync import BadPeer, ReadOnly, SyncError

OPS = 30


def _garbage(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(40_000))


def _missing(path: Path) -> None:
    path.unlink(missing_ok=True)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES = {"garbage": _garbage, "missing": _missing, "empty": _empty}


def _as_a_crash_leaves_it(path: Path, target: Path) -> None:
    for name in ("", "-wal", "-shm", "-lock"):
        beside = path.with_name(path.name + name)
        if beside.exists():
            shutil.copy(beside, target.with_name(target.name + name))


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A replica's files as a crash leaves them, all of its ops in the log beside it."""
    path, target = tmp_path / "a.db", tmp_path / "crashed.db"
    with Replica(path, client_id="a") as replica:
        for n in range(OPS):
            replica.session("s").put("notes", f"r{n}", {"n": n})
        _as_a_crash_leaves_it(path, target)
    return target


@pytest.mark.parametrize("damage", list(DAMAGES))
@pytest.mark.parametrize("name", ["-shm", "-lock"])
def test_what_can_be_made_anew_beside_a_replica_costs_nothing(
    crashed: Path, name: str, damage: str
) -> None:
    DAMAGES[damage](crashed.with_name(crashed.name + name))
    with Replica(crashed) as replica:
        assert replica.session("s").count("notes") == len(replica.session("s").pending()) == OPS
        replica.session("s").put("notes", "more", {})
    assert verify_file(crashed).all_problems() == []


@pytest.mark.parametrize("damage", ["garbage", "empty"])
def test_a_rotten_log_beside_a_replica_costs_what_was_in_it_and_nothing_else(
    tmp_path: Path, crashed: Path, damage: str
) -> None:
    with Replica(crashed) as replica:
        replica.session("s").put("notes", "kept", {})
    target = tmp_path / "again.db"
    with Replica(crashed) as replica:
        replica.session("s").put("notes", "in the log", {})
        _as_a_crash_leaves_it(crashed, target)
    DAMAGES[damage](target.with_name(target.name + "-wal"))
    with Replica(target) as replica:
        assert replica.session("s").count("notes") == OPS + 1
    assert verify_file(target).all_problems() == []


@pytest.mark.parametrize("ops", [1, 40, 400])
def test_the_log_of_another_replica_makes_no_file_that_only_seems_whole(
    tmp_path: Path, crashed: Path, ops: int
) -> None:
    """SQLite cannot tell whose log it is. What comes of it is one of the two, or is found out."""
    other, mixed = tmp_path / "other.db", tmp_path / "mixed.db"
    with Replica(crashed):
        pass  # All is in the file itself now, and closed.
    with Replica(other, client_id="other") as replica, replica.batch():
        for n in range(100):
            replica.session("s").put("notes", f"o{n}", {"n": n})
    with Replica(other) as replica:
        for n in range(ops):
            replica.session("s").put("notes", f"o{n}", {"text": "x" * 200})
        shutil.copy(crashed, mixed)
        shutil.copy(tmp_path / "other.db-wal", tmp_path / "mixed.db-wal")
        whole = [_content(crashed), _content(other)]
    try:
        found = _content(mixed)
        problems = verify_file(mixed).all_problems()
    except SyncError:
        return
    assert problems or found in whole


def _content(path: Path) -> list[tuple[str, object]]:
    with Replica(path) as replica:
        return list(replica.session("s").records("notes"))


@pytest.mark.parametrize("which", ["replica", "server"])
def test_a_lock_file_that_is_a_folder_is_an_error_that_names_it(tmp_path: Path, which: str) -> None:
    path = tmp_path / "x.db"
    (tmp_path / "x.db-lock").mkdir()
    opens: dict[str, Callable[[Path], object]] = {"replica": Replica, "server": SqliteStore}
    if which == "replica" and not _guarded(tmp_path):
        return  # This library needs no lock between processes.
    with pytest.raises(ReadOnly, match="x.db-lock"):
        opens[which](path)


def _guarded(folder: Path) -> bool:
    with Replica(folder / "probe.db") as replica:
        return replica.status().wal_guard


@pytest.mark.parametrize("damage", list(DAMAGES))
@pytest.mark.parametrize("name", ["-shm", "-lock"])
def test_what_can_be_made_anew_beside_a_servers_file_costs_nothing(
    tmp_path: Path, name: str, damage: str
) -> None:
    data, target = tmp_path / "server.db", tmp_path / "crashed.db"
    with Replica(tmp_path / "a.db") as replica, Replica(tmp_path / "b.db") as other:
        with SyncServer(SqliteStore(data), port=0) as server:
            for n in range(OPS):
                replica.session("s").put("notes", f"r{n}", {"n": n})
            replica.sync_once(server.url)
            _as_a_crash_leaves_it(data, target)
        DAMAGES[damage](target.with_name(target.name + name))
        with SyncServer(SqliteStore(target), port=0) as server:
            other.sync_once(server.url)
            assert replica.sync_once(server.url).healed == 0
        assert other.session("s").count("notes") == OPS
    assert verify_file(target).all_problems() == []


# The disk of a server that is at work.


@pytest.mark.long  # It may have to wait out a pause of 30 s between two attempts.
def test_a_servers_disk_that_fills_costs_time_and_no_write_and_readers_nothing(
    world: World,
) -> None:
    writer, reader = world.session("a"), world.session("b")
    with Nursery() as nursery:
        port = free_port()
        pid = nursery.start("server", path=str(world.data), port=port)
        url = f"ws://127.0.0.1:{port}"
        eventually(lambda: _syncs(world, "a", url))
        with (
            world.replica("a").connect(url) as connection,
            world.replica("b").connect(url) as other,
        ):
            for n in range(OPS):
                writer.put("notes", f"r{n}", {"n": n})
            connection.wait_synced(20)
            other.wait_synced(20)
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            full = world.data.with_name(world.data.name + "-wal").stat().st_size + 2000
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (full, hard))
            receipts = [writer.put("notes", f"s{n}", {"text": "x" * 5000}) for n in range(OPS)]
            # Whoever only reads is served as if nothing were.
            world.session("c")
            world.sync("c", url=url)
            assert world.session("c").count("notes") >= OPS
            other.signal("case", "typing")
            assert sum(receipt.state.pending for receipt in receipts) > 0
            assert writer.refused() == []
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
            connection.wait_synced(40)
            other.wait_synced(20)
            assert not any(receipt.state.pending for receipt in receipts)
            assert reader.count("notes") == 2 * OPS
        world.sync("c", url=url)
        nursery.end(pid)
    world.check()


def _syncs(world: World, name: str, url: str) -> bool:
    try:
        world.sync(name, url=url)
    except SyncError:
        threading.Event().wait(0.05)
        return False
    return True


def test_a_damaged_entry_on_the_server_stops_its_session_and_no_other(world: World) -> None:
    server = world.start()
    for id_ in ("damaged", "whole"):
        with world.replica("a").batch():
            for n in range(OPS):
                world.session("a", id_).put("notes", f"r{n}", {"n": n})
    world.sync("a")
    world.stop()
    with closing(sqlite3.connect(world.data)) as db, db:
        triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type='trigger'").fetchall()
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        ((key,),) = db.execute("SELECT session FROM sessions WHERE id='damaged'")
        (entry,) = db.execute("SELECT entry FROM log WHERE session=? AND seq=7", (key,)).fetchone()
        db.execute("UPDATE log SET entry=x'c1' WHERE session=? AND seq=7", (key,))
        for _, sql in triggers:
            db.execute(sql)
    assert verify_file(world.data).all_problems() != []
    world.start(port=server.port, bootstrap_entries_min=10_000)
    receipt = world.session("b", "whole").put("notes", "own", {})
    with pytest.raises(BadPeer, match="session damaged: .* cannot be applied"):
        world.sync("b")
    assert world.session("b", "whole").count("notes") == OPS + 1
    assert not receipt.state.pending
    with world.replica("b").connect(world.url) as connection:
        with pytest.raises(BadPeer, match="session damaged"):
            connection.wait_synced(20)
        world.session("a", "whole").put("notes", "live", {})
        world.sync("a")
        eventually(lambda: world.session("b", "whole").get("notes", "live") is not None)
    world.stop()
    assert query(world.data, "SELECT count(*) FROM log WHERE entry=x'c1'") == [(1,)]
    with closing(sqlite3.connect(world.data)) as db, db:
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        db.execute("UPDATE log SET entry=? WHERE session=? AND seq=7", (entry, key))
        for _, sql in triggers:
            db.execute(sql)
    world.start(port=server.port)
    world.sync("b", "a")
    world.check()
