"""C033: the server was restored from a backup, and its clients are ahead of it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import pytest

from syncline.client import Receipt, Session
from syncline.server import SqliteStore, backup, check_ledger, restore
from syncline.sync import unpack

from .support import World


def _put(session: Session, name: str, count: int) -> list[Receipt]:
    with session._core.batch():
        return [session.put("notes", f"{name}{i}", {"by": name, "i": i}) for i in range(count)]


def _records(world: World, *names: str) -> set[str]:
    """The record ids that all of these show, equal everywhere."""
    shown = [dict(world.session(name).records("notes")) for name in names]
    assert all(one == shown[0] for one in shown)
    return set(shown[0])


def _until_equal(world: World) -> None:
    """A healing takes as many syncs as there are clients that give something back."""
    for _ in range(3):
        world.sync()


def _hundred_then_fifty(world: World) -> Sequence[Receipt]:
    """Backup at seq 100, then 50 more that A and B acknowledge; D is offline since seq 90."""
    world.start()
    a = world.session("a")
    _put(a, "base", 90)
    world.sync("a")
    world.session("b"), world.session("d")
    world.settle()
    world.close("d")
    _put(a, "tail", 10)
    world.settle()
    backup(world.data, world.folder / "backup.db")
    receipts = _put(a, "a", 20)
    world.sync("a")
    receipts += _put(world.session("b"), "b", 30)
    world.settle()
    assert len(world.log()) == 150
    assert {receipt.state.value for receipt in receipts} == {"applied"}
    return receipts


def _restore(world: World) -> None:
    world.stop()
    restored = restore(world.data, world.folder / "backup.db")
    assert (restored.epoch_before, restored.epoch) == (1, 2)
    world.start()


def _all(*names: str) -> set[str]:
    counts = {"base": 90, "tail": 10, "a": 20, "b": 30, "c": 60, "unsent": 2}
    return {f"{name}{i}" for name in names for i in range(counts[name])}


def test_C033_clients_give_back_what_a_restored_server_has_forgotten(world: World) -> None:
    receipts = _hundred_then_fifty(world)
    _restore(world)
    _put(world.session("c"), "c", 60)
    world.sync("c")
    assert len(world.log()) == 160, "the numbers 101 to 150 stand for other entries now"
    unsent = _put(world.session("a"), "unsent", 2)
    world.session("d")
    report = world.replica("a").sync_once(world.url)
    assert (report.healed, report.requeued) == (1, 20)
    _until_equal(world)
    everything = _all("base", "tail", "a", "b", "c", "unsent")
    assert _records(world, "a", "b", "c", "d") == everything
    assert {receipt.state.value for receipt in (*receipts, *unsent)} == {"applied"}
    for name in ("a", "b"):
        assert "healed" in {notice.kind for notice in world.replica(name).status().notices}
    kinds = {notice.kind for notice in world.replica("d").status().notices}
    assert kinds == {"new client id"}, "D has nothing to give back, and goes on"
    assert len(world.log()) == 100 + 60 + 20 + 30 + 2
    epochs = [entry.epoch for entry in world.log()]
    assert epochs == [1] * 100 + [2] * 112
    world.check()
    store = SqliteStore(world.data)
    rows = store.ledger(0, 1000)
    store.close()
    check_ledger(rows)
    told = [fields for fields in (unpack(row.row) for row in rows) if fields[2] == "restore"]
    assert [fields[4]["from"] for fields in told] == [1]


def test_C033_without_new_writes_clients_heal_the_server_at_once(world: World) -> None:
    _hundred_then_fifty(world)
    _restore(world)
    world.session("d")
    _until_equal(world)
    assert _records(world, "a", "b", "d") == _all("base", "tail", "a", "b")
    assert len(world.log()) == 150
    world.check()


def test_C033_clients_that_stay_connected_heal_the_server_by_themselves(world: World) -> None:
    _hundred_then_fifty(world)
    assert world.server is not None
    port = world.server.port
    with (
        world.replica("a").connect(world.url) as a,
        world.replica("b").connect(world.url) as b,
    ):
        for connection in (a, b):
            connection.wait_synced(10)
        world.stop()
        restore(world.data, world.folder / "backup.db")
        world.start(port=port)
        for connection in (a, b, a):
            connection.poke()
            connection.wait_synced(20)
        assert _records(world, "a", "b") == _all("base", "tail", "a", "b")
    world.session("d")
    world.sync("d")
    world.check()


@pytest.mark.parametrize("lost", [1, 3])
def test_C033_a_tail_that_a_killed_server_lost_is_given_back(world: World, lost: int) -> None:
    """SIGKILL, and the machine kept less than was answered: the head goes back by a few."""
    process = world.start_process()
    a = world.session("a")
    _put(a, "base", 10)
    world.sync("a")
    process.kill()
    world.process = None
    shutil.copy(world.data, world.folder / "earlier.db")
    wal = world.data.with_name("server.db-wal")
    if wal.exists():
        shutil.copy(wal, world.folder / "earlier.db-wal")
    world.start()
    for i in range(lost):
        a.put("notes", f"tail{i}", {"i": i})
    world.session("b")
    world.settle()
    world.stop()
    restore(world.data, world.folder / "earlier.db")
    world.start()
    world.session("c").put("notes", "other", {})
    world.sync("c")
    _until_equal(world)
    expected = {f"base{i}" for i in range(10)} | {f"tail{i}" for i in range(lost)} | {"other"}
    assert _records(world, "a", "b", "c") == expected
    world.check()


def test_C033_a_server_file_replaced_while_it_runs_does_not_go_unseen(world: World) -> None:
    """The running server keeps its own file; the other one counts after the next start."""
    _hundred_then_fifty(world)
    copied = world.data.with_name("incoming.db")
    shutil.copy(world.folder / "backup.db", copied)
    copied.replace(world.data)
    _put(world.session("a"), "unsent", 2)
    world.sync("a")
    world.stop()
    for suffix in ("-wal", "-shm"):
        world.data.with_name("server.db" + suffix).unlink(missing_ok=True)
    restore(world.data)
    world.start()
    world.session("d")
    _until_equal(world)
    assert _records(world, "a", "b", "d") == _all("base", "tail", "a", "b", "unsent")
    world.check()
