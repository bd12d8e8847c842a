"""C030: a replica that was copied to a second device: two writers who began with one client id."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from syncline.client import Replica

from .support import SESSION, World


def _copy(world: World, source: str, target: str) -> Path:
    """Copy a closed replica's file, as a backup tool or a person would."""
    world.close(source)
    path = world.add(world.folder / f"{target}.db")
    shutil.copy(world.folder / f"{source}.db", path)
    return path


def _open(world: World, *names: str) -> list[Replica]:
    """Open them under the client id that is in the file."""
    return [world.replica(name, client_id=None) for name in names]


def _ten(world: World) -> None:
    world.start()
    a = world.session("a")
    for i in range(10):
        a.put("notes", f"r{i}", {"i": i})
    world.sync("a")


def _write_apart(world: World, *names: str) -> None:
    for name in names:
        session = world.replica(name).session(SESSION)
        session.put("notes", f"of {name}", {"by": name})
        session.put("notes", "shared", {"by": name})


def _all_there(world: World, *names: str) -> None:
    """Every copy's writes survive, everybody has an id of their own, and all show the same."""
    world.settle()
    replicas = [world.replica(name) for name in names]
    assert len({replica.client_id for replica in replicas}) == len(names)
    shown = [dict(replica.session(SESSION).records("notes")) for replica in replicas]
    for name in names:
        assert shown[0][f"of {name}"] == {"by": name}
    assert all(one == shown[0] for one in shown)
    values = {conflict.value for conflict in replicas[0].session(SESSION).conflicts()}
    assert values | {shown[0]["shared"]["by"]} == set(names), "what lost is listed"


@pytest.mark.parametrize("order", [("a", "a2"), ("a2", "a")])
def test_C030_both_copies_keep_their_writes_whoever_comes_first(
    world: World, order: tuple[str, str]
) -> None:
    _ten(world)
    _copy(world, "a", "a2")
    _open(world, "a", "a2")
    _write_apart(world, "a", "a2")
    world.sync(*order)
    _all_there(world, "a", "a2")
    first, second = (world.replica(name) for name in order)
    assert first.client_id == "a"
    assert [notice.kind for notice in second.status().notices] == ["new client id"]
    world.check()


def test_C030_both_copies_keep_their_writes_when_connected_at_once(world: World) -> None:
    _ten(world)
    _copy(world, "a", "a2")
    a, a2 = _open(world, "a", "a2")
    _write_apart(world, "a", "a2")
    with a.connect(world.url) as one, a2.connect(world.url) as two:
        one.wait_synced(20)
        two.wait_synced(20)
        one.wait_synced(20)
        a.session(SESSION).put("notes", "later", {"by": "a"}).wait(10)
        a2.session(SESSION).put("notes", "later still", {"by": "a2"}).wait(10)
    _all_there(world, "a", "a2")
    world.check()


def test_C030_a_copy_of_a_copy_is_told_apart_as_well(world: World) -> None:
    _ten(world)
    _copy(world, "a", "a2")
    _open(world, "a", "a2")
    _write_apart(world, "a", "a2")
    world.settle()
    _copy(world, "a2", "a3")
    _copy(world, "a", "a4")
    _open(world, "a", "a2", "a3", "a4")
    for name in ("a", "a2", "a3", "a4"):
        world.replica(name).session(SESSION).put("notes", f"second of {name}", {"by": name})
    world.settle()
    ids = {world.replica(name).client_id for name in ("a", "a2", "a3", "a4")}
    assert len(ids) == 4
    records = dict(world.replica("a4").session(SESSION).records("notes"))
    assert {f"second of {name}" for name in ("a", "a2", "a3", "a4")} <= records.keys()
    world.check()


@pytest.mark.parametrize("order", [("a", "a2"), ("a2", "a")])
def test_C030_ops_that_waited_when_the_file_was_copied_are_stored_once(
    world: World, order: tuple[str, str]
) -> None:
    _ten(world)
    a = world.session("a")
    for i in range(5):
        a.append("happened", {"i": i})
    _copy(world, "a", "a2")
    _open(world, "a", "a2")
    world.sync(*order)
    _write_apart(world, "a", "a2")
    _all_there(world, "a", "a2")
    for name in order:
        events = world.replica(name).session(SESSION).events()
        assert [event.payload["i"] for event in events] == [0, 1, 2, 3, 4]
    assert len(world.log()) == 10 + 5 + 4
    world.check()


def test_C030_a_file_that_was_moved_stays_who_it_was(world: World) -> None:
    _ten(world)
    world.close("a")
    world.files.clear()
    (world.folder / "elsewhere").mkdir()
    path = world.folder / "moved.db"
    shutil.move(world.folder / "a.db", path)
    world.add(path)
    (moved,) = _open(world, "moved")
    moved.session(SESSION).put("notes", "after", {})
    world.sync("moved")
    assert moved.client_id == "a" and moved.status().notices == ()
    world.check()
