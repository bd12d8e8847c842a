"""C062: a rollback rewinds nothing: versions rise, stale drafts fail, nobody's write is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.client.wire import Wire, state_of

from syncline.client import Replica
from syncline.client.sessions import (
    AgentDefinition,
    AgentSession,
    Checkpoints,
    ReplicaSessionStore,
    SessionRuntime,
    WriteMetadata,
    _checkpoints,
)
from syncline.sync import SessionConflict
from syncline.sync.sessions import rollback_difference

from .support import World

HELPER = AgentDefinition("helper")
WAIT_S = 10


def runtime_of(replica: Replica) -> SessionRuntime:
    return SessionRuntime(ReplicaSessionStore(replica))


def step(runtime: SessionRuntime, id_: str, value: int) -> AgentSession:
    return runtime.execute(id_, WriteMetadata("step", value))


def save_as(runtime: SessionRuntime, draft: AgentSession, version: int) -> None:
    """Save a draft as if it had been loaded at this version."""
    with pytest.raises(SessionConflict):
        runtime.repository.save(replace(draft, header=replace(draft.header, version=version)))


# Step 1.


def test_C062_a_draft_from_before_the_rollback_fails_with_the_conflict_error(world: World) -> None:
    world.start()
    path = world.folder / "a.db"
    y = runtime_of(world.replica("a"))
    with Replica(path) as other:
        x = runtime_of(other)
        id_ = y.create(HELPER).id
        while y.get_session(id_).version < 5:
            step(y, id_, y.get_session(id_).version)
        checkpoint = y.checkpoints.create(id_)
        draft = x.get_session(id_)
        draft = draft.with_state(draft.state.with_metadata("of", "x"))
        then = y.get_session(id_).state
        step(y, id_, 6)
        step(y, id_, 7)
        assert (draft.version, y.get_session(id_).version) == (5, 7)

        y.checkpoints.rollback(id_, checkpoint.id)
        assert (y.get_session(id_).version, y.get_session(id_).state) == (8, then)
        assert step(y, id_, 9).version == 9
        for expected in (5, 6, 7, 8):
            save_as(x, draft, expected)
        assert x.get_session(id_) == y.get_session(id_)
        assert "of" not in y.get_session(id_).state.metadata
        # What is loaded now is saved as ever.
        assert step(x, id_, 10).version == 10
    world.settle()
    world.check()


def test_C062_a_draft_on_another_device_fails_when_the_rollback_has_arrived(world: World) -> None:
    world.start()
    y = runtime_of(world.replica("a"))
    id_ = y.create(HELPER).id
    step(y, id_, 1)
    checkpoint = y.checkpoints.create(id_)
    world.sync()
    x = runtime_of(world.replica("b"))
    world.settle()
    draft = x.get_session(id_)
    step(y, id_, 2)
    world.settle()
    y.checkpoints.rollback(id_, checkpoint.id)
    world.settle()
    # The content is what the draft was loaded from; the version is another all the same.
    assert x.get_session(id_).state == draft.state
    assert x.get_session(id_).version > draft.version
    for expected in range(1, x.get_session(id_).version):
        save_as(x, draft, expected)
    world.check()


# Step 2.


def test_C062_no_version_ever_stands_for_two_contents(world: World) -> None:
    world.start()
    ann, bob = runtime_of(world.replica("a")), None
    seen: dict[tuple[str, int], set[str]] = {}

    def look() -> None:
        for name, runtime in (("a", ann), ("b", bob)):
            if runtime is not None:
                session = runtime.get_session(id_)
                seen.setdefault((name, session.version), set()).add(repr(session.state))

    id_ = ann.create(HELPER).id
    step(ann, id_, 1)
    checkpoint = ann.checkpoints.create(id_)
    world.sync()
    bob = runtime_of(world.replica("b"))
    world.settle()
    look()
    for _ in range(2):
        for value in (2, 3):
            step(ann, id_, value)
            look()
        world.settle()
        look()
        ann.checkpoints.rollback(id_, checkpoint.id)
        look()
        world.settle()
        look()
    assert len(seen) >= 12
    assert {key: states for key, states in seen.items() if len(states) > 1} == {}
    assert ann.get_session(id_).state == bob.get_session(id_).state
    world.check()


# Step 3.


def test_C062_who_writes_between_the_rollbacks_read_and_its_write_comes_after_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.start()
    session = world.session("a")
    session.put("notes", "n", {"a": 1})
    past = Checkpoints(session)
    checkpoint = past.create()
    session.put("notes", "n", {"a": 2})
    began = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        try:
            began.set()
            other.session("case").patch("notes", "n", {"b": "meanwhile"})
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=write)

    def interrupted(*arguments: Any) -> Any:
        # The rollback has read what it will write over.
        writer.start()
        assert began.wait(WAIT_S)
        return rollback_difference(*arguments)

    monkeypatch.setattr(_checkpoints, "rollback_difference", interrupted)
    with Replica(world.folder / "a.db") as other:
        past.rollback(checkpoint)
        writer.join(WAIT_S)
    assert failures == [] and not writer.is_alive()
    assert session.get("notes", "n") == {"a": 1, "b": "meanwhile"}
    world.settle()
    world.check()


def test_C062_of_two_rollbacks_at_once_that_expect_one_version_one_fails(world: World) -> None:
    world.start()
    runtime = runtime_of(world.replica("a"))
    id_ = runtime.create(HELPER).id
    checkpoints = [runtime.checkpoints.create(id_)]
    step(runtime, id_, 1)
    checkpoints.append(runtime.checkpoints.create(id_))
    now = step(runtime, id_, 2).version
    ready = threading.Barrier(2)
    outcomes: list[str] = []

    def go(place: str) -> None:
        with Replica(world.folder / "a.db") as replica:
            other = runtime_of(replica)
            ready.wait(WAIT_S)
            try:
                other.checkpoints.rollback(id_, place, expected_version=now)
                outcomes.append("done")
            except SessionConflict:
                outcomes.append("conflict")

    threads = [threading.Thread(target=go, args=(one.id,)) for one in checkpoints]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(outcomes) == ["conflict", "done"]
    assert runtime.get_session(id_).version == now + 1
    world.settle()
    world.check()


def test_C062_two_devices_roll_back_at_once_and_agree_on_every_field(world: World) -> None:
    world.start()
    a = world.session("a")
    a.put("notes", "n", {"x": 1, "y": 1})
    first = Checkpoints(a).create()
    a.put("notes", "n", {"x": 2, "y": 2})
    second = Checkpoints(a).create()
    a.put("notes", "n", {"x": 3, "y": 3})
    world.sync()
    b = world.session("b")
    world.settle()
    Checkpoints(a).rollback(first.id)
    Checkpoints(b).rollback(second.id)
    world.settle()
    assert a.get("notes", "n") == b.get("notes", "n") == {"x": 2, "y": 2}
    assert a.conflicts() == b.conflicts()
    assert {(c.field, c.value) for c in a.conflicts()} == {("x", 1), ("y", 1)}
    world.check()


def test_C062_one_rolls_back_while_the_other_edits_offline(world: World) -> None:
    world.start()
    a = world.session("a")
    a.put("notes", "n", {"x": 1, "y": 1})
    checkpoint = Checkpoints(a).create()
    a.put("notes", "n", {"x": 2, "y": 2})
    a.put("notes", "new", {"z": 1})
    world.sync()
    b = world.session("b")
    world.settle()
    b.patch("notes", "n", {"y": 9})
    b.patch("notes", "new", {"z": 9})
    b.put("notes", "other", {})
    Checkpoints(a).rollback(checkpoint.id)
    world.settle()
    shown = dict(a.records("notes"))
    assert shown == dict(b.records("notes"))
    assert shown["n"]["x"] == 1 and "other" in shown
    # Every value of the one who was offline shows, or is a conflict that can be put back.
    lost = [c for c in b.conflicts() if 9 in (c.value, *getattr(c.value, "values", tuple)())]
    kept = (shown["n"]["y"] == 9) + (shown.get("new", {}).get("z") == 9)
    assert kept + len(lost) == 2
    world.check()


def test_C062_a_rollback_in_the_middle_of_a_push_is_sent_after_what_it_rolls_back(
    tmp_path: Path,
) -> None:
    wire = Wire(folder=tmp_path)
    try:
        ann, bob = wire.open("ann"), wire.open("bob")
        session = ann.create_session(session_id="s")
        past = Checkpoints(session)
        for n in range(600):  # More than one push holds.
            session.put("notes", f"n{n % 7}", {"n": n})
            if n == 300:
                checkpoint = past.create()
                then = dict(session.records("notes"))
        line = wire.connect(ann)
        while wire.store.head("s") is None:
            line.send_one() if line.to_server else line.receive_one()
        assert 0 < wire.store.head("s").seq < 600
        past.rollback(checkpoint)
        line.deliver()
        line.cut()
        wire.sync(ann)
        wire.sync(bob)
        assert dict(bob.session("s").records("notes")) == then
        assert state_of(ann, "s") == state_of(bob, "s") == wire.state("s")
    finally:
        wire.close()


# Step 4.


def test_C062_after_a_local_exception_the_next_write_works(world: World) -> None:
    world.start()
    runtime = runtime_of(world.replica("a"))
    id_ = runtime.create(HELPER).id
    session = world.session("a", id_)
    checkpoint = runtime.checkpoints.create(id_)
    before = step(runtime, id_, 1)

    def fails(write: Callable[[], object]) -> None:
        with pytest.raises(RuntimeError), session.transaction():
            write()
            raise RuntimeError("the app changed its mind")

    fails(lambda: session.put("notes", "n", {"a": 1}))
    fails(lambda: step(runtime, id_, 2))
    fails(lambda: Checkpoints(session).create())
    with pytest.raises(RuntimeError), world.replica("a").batch():
        Checkpoints(session).rollback(checkpoint)
        raise RuntimeError("the app changed its mind")
    assert runtime.get_session(id_) == before
    assert step(runtime, id_, 3).version == before.version + 1
    world.settle()
    world.check()
