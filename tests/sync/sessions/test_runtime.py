"""The runtime: both pipelines, what is stored and what is shown, and what is told of each failure.

Names of tests carry the line of the requirements that they pin (2.4 is ``R2_4``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest

from syncline.sync import LocalError, NotFound, SessionConflict, SessionNotFound
from syncline.sync.sessions import (
    AgentDefinition,
    AgentSession,
    AgentState,
    MemorySessionStore,
    Message,
    PostCommitFailed,
    RuntimeEvent,
    SendMessage,
    SessionActionExecuted,
    SessionController,
    SessionHookStack,
    SessionLoaded,
    SessionLoadFailed,
    SessionRuntime,
    SessionSaved,
    SessionSaveFailed,
    SessionStatus,
    SessionStore,
    Stage,
    SuspendSession,
    WriteMetadata,
)

HELPER = AgentDefinition("helper", system_prompt="Help.")
ACTIVE, SUSPENDED = SessionStatus.ACTIVE, SessionStatus.SUSPENDED


class Broken(Exception):
    """Raised by hooks, actions and stores of these tests."""


@dataclass
class At:
    """A controller that does something at one stage."""

    stage: Stage
    do: Callable[[AgentSession], AgentSession]

    def on_stage(self, stage: Stage, session: AgentSession) -> AgentSession:
        return self.do(session) if stage is self.stage else session


class Everywhere:
    """A controller that leaves a mark in the metadata, and its trace, at every stage."""

    def __init__(self, trace: list[str], name: str = "") -> None:
        self.trace, self.name = trace, name

    def on_stage(self, stage: Stage, session: AgentSession) -> AgentSession:
        self.trace.append(f"{self.name}{stage}")
        return session.with_state(session.state.with_metadata(f"{self.name}{stage}", True))


class Traced:
    """A store that notes what is asked of it."""

    def __init__(self, trace: list[str]) -> None:
        self.trace, self.inner = trace, MemorySessionStore(count(1000).__next__)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        def traced(*args: Any) -> Any:
            self.trace.append(name)
            return method(*args)

        return traced


class World:
    """A runtime over a store in memory, and all that it told."""

    def __init__(
        self,
        hooks: SessionController | None = None,
        store: SessionStore | None = None,
        trace: list[str] | None = None,
        **options: Any,
    ) -> None:
        ids = (f"id{n}" for n in count(1))
        self.store = MemorySessionStore(count(1000).__next__) if store is None else store
        self.runtime = SessionRuntime(self.store, new_id=lambda: next(ids), hooks=hooks, **options)
        self.told: list[RuntimeEvent] = []
        self.runtime.listen(self.told.append)
        if trace is not None:
            self.runtime.listen(lambda event: trace.append(type(event).__name__))

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.told]

    def kept(self, id_: str = "id1") -> AgentSession:
        session = self.store.load(id_)
        assert session is not None
        return session


def raising(session: AgentSession) -> AgentSession:
    raise Broken("no")


def test_R2_4_a_create_goes_through_its_pipeline_in_order() -> None:
    trace: list[str] = []
    world = World(Everywhere(trace), Traced(trace), trace)
    created = world.runtime.create(HELPER)
    assert trace == [
        "before_create",
        "before_save",
        "create",
        "after_save",
        "after_create",
        "SessionSaved",
    ]
    assert (created.id, created.version, created.status) == ("id1", 1, ACTIVE)


def test_R2_4_an_execute_goes_through_its_pipeline_in_order() -> None:
    trace: list[str] = []
    world = World(Everywhere(trace), Traced(trace), trace)
    world.runtime.create(HELPER)
    trace.clear()

    class Act:
        def execute_on(self, session: AgentSession) -> AgentSession:
            trace.append("action")
            return session

    world.runtime.execute("id1", Act())
    assert trace == [
        "load",
        "after_load",
        "SessionLoaded",
        "action",
        "after_action",
        "before_save",
        "SessionActionExecuted",
        "save",
        "after_save",
        "SessionSaved",
    ]


def test_R2_5_of_a_create_the_stages_before_are_stored_and_those_behind_are_shown() -> None:
    world = World(Everywhere([]))
    created = world.runtime.create(HELPER)
    stored = {"before_create", "before_save"}
    assert set(world.kept().state.metadata) == stored
    assert set(created.state.metadata) == stored | {"after_save", "after_create"}


def test_R2_5_of_an_execute_the_stages_before_are_stored_and_those_behind_are_shown() -> None:
    world = World()
    world.runtime.create(HELPER)
    hooked = World(Everywhere([]), world.store)
    shown = hooked.runtime.execute("id1", WriteMetadata("action", True))
    stored = {"after_load", "action", "after_action", "before_save"}
    assert set(hooked.kept().state.metadata) == stored
    assert set(shown.state.metadata) == stored | {"after_save"}


def test_R2_3_reads_show_the_hooks_at_after_load_and_persist_nothing() -> None:
    world = World(Everywhere([]))
    created = world.runtime.create(HELPER)
    before = world.kept()
    read = world.runtime.get_session(created.id)
    assert "after_load" in read.state.metadata
    assert world.runtime.get_session_info(created.id) == read.header
    assert world.runtime.list_sessions() == [before.header]
    assert world.kept() == before
    assert (read.version, before.version) == (1, 1)


def test_R2_3_a_seed_is_the_first_state_and_its_messages_get_ids() -> None:
    world = World()
    seed = AgentState(messages=(Message.user("hi"), Message.user("named", id="m")))
    created = world.runtime.create(HELPER, seed)
    assert [message.id for message in created.state.messages] == ["id2", "m"]
    sent = world.runtime.execute("id1", SendMessage("more"))
    assert [message.id for message in sent.state.messages] == ["id2", "m", "id3"]
    assert world.kept() == sent


def test_R2_7_events_of_a_session_carry_its_id_its_versions_and_statuses() -> None:
    world = World()
    world.runtime.create(HELPER)
    world.runtime.execute("id1", SuspendSession())
    assert world.told == [
        SessionSaved("id1", 1, ACTIVE),
        SessionLoaded("id1", 1, ACTIVE),
        SessionActionExecuted("id1", "SuspendSession", 1, 1, ACTIVE, SUSPENDED),
        SessionSaved("id1", 2, SUSPENDED),
    ]


@pytest.mark.parametrize("read", ["get_session", "get_session_info", "execute", "resume"])
def test_R2_6_a_missing_session_tells_of_a_failed_load_and_nothing_else(read: str) -> None:
    world = World()
    more = (SuspendSession(),) if read == "execute" else ()
    with pytest.raises(SessionNotFound) as raised:
        getattr(world.runtime, read)("nobody", *more)
    assert world.told == [SessionLoadFailed("nobody", str(raised.value), "SessionNotFound")]


def test_R2_6_a_conflict_tells_of_load_action_and_a_failed_save() -> None:
    world = World()
    world.runtime.create(HELPER)

    class Overtaken:
        def execute_on(self, session: AgentSession) -> AgentSession:
            world.store.save(session.with_state(session.state.with_metadata("who", "first")))
            return session.with_state(session.state.with_metadata("who", "second"))

    world.told.clear()
    with pytest.raises(SessionConflict) as raised:
        world.runtime.execute("id1", Overtaken())
    assert world.told == [
        SessionLoaded("id1", 1, ACTIVE),
        SessionActionExecuted("id1", "Overtaken", 1, 1, ACTIVE, ACTIVE),
        SessionSaveFailed("id1", str(raised.value), "SessionConflict"),
    ]
    assert (world.kept().version, world.kept().state.metadata) == (2, {"who": "first"})


def test_R2_6_a_create_that_fails_tells_of_a_failed_save() -> None:
    world = World(At(Stage.BEFORE_CREATE, lambda s: replace(s, header=replace(s.header, id="x"))))
    world.runtime.create(HELPER)
    world.told.clear()
    with pytest.raises(SessionConflict) as raised:
        world.runtime.create(HELPER)
    assert world.told == [SessionSaveFailed("x", str(raised.value), "SessionConflict")]


@pytest.mark.parametrize("stage", [Stage.BEFORE_CREATE, Stage.BEFORE_SAVE])
def test_R2_6_a_hook_before_a_create_that_raises_tells_nothing_and_stores_nothing(
    stage: Stage,
) -> None:
    world = World(At(stage, raising))
    with pytest.raises(Broken):
        world.runtime.create(HELPER)
    assert world.told == []
    assert world.store.list_headers() == []
    assert world.runtime.active_session is None


@pytest.mark.parametrize("stage", [Stage.AFTER_ACTION, Stage.BEFORE_SAVE])
def test_R2_6_a_hook_before_a_save_that_raises_tells_of_no_failure_and_stores_nothing(
    stage: Stage,
) -> None:
    world = World()
    created = world.runtime.create(HELPER)
    hooked = World(At(stage, raising), world.store)
    with pytest.raises(Broken):
        hooked.runtime.execute("id1", SuspendSession())
    assert hooked.kinds() == ["SessionLoaded"]
    assert world.kept() == created


def test_R2_6_an_action_that_raises_tells_of_no_failure_and_stores_nothing() -> None:
    world = World()
    created = world.runtime.create(HELPER)

    class Fails:
        def execute_on(self, session: AgentSession) -> AgentSession:
            return raising(session)

    with pytest.raises(Broken):
        world.runtime.execute("id1", Fails())
    assert world.kinds() == ["SessionSaved", "SessionLoaded"]
    assert world.kept() == created


def test_R2_6_a_hook_at_after_load_that_raises_is_a_failed_load() -> None:
    world = World()
    world.runtime.create(HELPER)
    hooked = World(At(Stage.AFTER_LOAD, raising), world.store)
    with pytest.raises(Broken):
        hooked.runtime.execute("id1", SuspendSession())
    assert hooked.told == [SessionLoadFailed("id1", "no", "Broken")]


def test_R2_6_a_hook_behind_a_save_that_raises_is_a_failure_of_its_own_and_the_row_is_stored() -> (
    None
):
    world = World()
    world.runtime.create(HELPER)
    hooked = World(At(Stage.AFTER_SAVE, raising), world.store)
    with pytest.raises(Broken):
        hooked.runtime.execute("id1", SuspendSession())
    assert hooked.told == [
        SessionLoaded("id1", 1, ACTIVE),
        SessionActionExecuted("id1", "SuspendSession", 1, 1, ACTIVE, SUSPENDED),
        PostCommitFailed("id1", 2, Stage.AFTER_SAVE, "no", "Broken"),
    ]
    assert (world.kept().version, world.kept().status) == (2, SUSPENDED)


@pytest.mark.parametrize("stage", [Stage.AFTER_SAVE, Stage.AFTER_CREATE])
def test_R2_6_a_hook_behind_a_create_that_raises_is_a_failure_of_its_own(stage: Stage) -> None:
    world = World(At(stage, raising))
    with pytest.raises(Broken):
        world.runtime.create(HELPER)
    assert world.told == [PostCommitFailed("id1", 1, stage, "no", "Broken")]
    assert world.kept().version == 1


def test_R2_6_whatever_a_store_raises_is_told_and_raised_as_it_is() -> None:
    class Down(MemorySessionStore):
        def save(self, session: AgentSession) -> AgentSession:
            raise Broken("the disk is on fire")

    world = World(store=Down(count(1).__next__))
    world.runtime.create(HELPER)
    with pytest.raises(Broken, match="on fire"):
        world.runtime.execute("id1", SuspendSession())
    assert world.told[-1] == SessionSaveFailed("id1", "the disk is on fire", "Broken")


def test_R2_7_a_listener_that_fails_breaks_no_save_and_the_others_hear_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()

    def bad(event: RuntimeEvent) -> None:
        raise Broken("listener")

    stop = world.runtime.listen(bad)
    heard: list[RuntimeEvent] = []
    world.runtime.listen(heard.append)
    with caplog.at_level(logging.ERROR, "syncline.sync.sessions"):
        world.runtime.create(HELPER)
        world.runtime.execute("id1", SuspendSession())
    assert heard == world.told
    assert len(caplog.records) == 4
    stop()
    stop()
    caplog.clear()
    world.runtime.execute("id1", SuspendSession())
    assert caplog.records == []


def test_R2_8_a_higher_priority_comes_first_and_ties_as_they_were_added() -> None:
    trace: list[str] = []
    stack = SessionHookStack()
    for name, priority in [("low ", -1), ("a ", 0), ("high ", 9), ("b ", 0), ("low2 ", -1)]:
        stack = stack.adding(Everywhere(trace, name), priority=priority)
    World(stack).runtime.create(HELPER)
    assert trace[:5] == [f"{name} before_create" for name in ("high", "a", "b", "low", "low2")]


def test_R2_8_adding_returns_a_new_stack_and_stacks_nest() -> None:
    trace: list[str] = []
    empty = SessionHookStack()
    one = empty.adding(Everywhere(trace, "one "), name="one")
    both = one.adding(one).adding(Everywhere(trace, "two "))
    assert (len(empty.hooks), len(one.hooks), len(both.hooks)) == (0, 1, 3)
    assert one.hooks[0].name == "one"
    World(both).runtime.create(HELPER)
    assert trace[:3] == ["one before_create", "one before_create", "two before_create"]


def test_R2_8_a_single_controller_serves_as_a_stack_and_none_passes_through() -> None:
    auto = At(Stage.BEFORE_SAVE, lambda session: session.suspended())
    world = World(auto)
    assert world.runtime.create(HELPER).status is SUSPENDED
    plain = World()
    created = plain.runtime.create(HELPER)
    assert created == plain.kept()


def test_R1_6_a_runtime_without_conflicts_in_its_store_says_so() -> None:
    world = World()
    world.runtime.create(HELPER)
    with pytest.raises(NotFound, match="a replica does"):
        world.runtime.resolve_conflict("id1", "c1", "local")


def test_R1_3_a_conflict_is_resolved_by_the_store_that_has_it() -> None:
    class Resolving(MemorySessionStore):
        def resolve_conflict(self, *asked: Any) -> None:
            self.asked = asked

    store = Resolving(count(1).__next__)
    world = World(store=store)
    created = world.runtime.create(HELPER)
    assert world.runtime.resolve_conflict("id1", "c1", {"status": "active"}) == created
    assert store.asked == ("id1", "c1", {"status": "active"})


def test_R1_7_a_delete_takes_checkpoints_row_and_active_session() -> None:
    dropped: list[tuple[str, bool]] = []

    class Checkpoints:
        def latest_snapshot(self, session_id: str) -> None:
            return None

        def delete_all(self, session_id: str) -> None:
            dropped.append((session_id, world.store.exists(session_id)))

    world = World(checkpoints=Checkpoints())
    world.runtime.create(HELPER)
    other = world.runtime.create(HELPER)
    world.runtime.delete("id1")
    assert world.runtime.active_session == other
    world.runtime.delete("id2")
    world.runtime.delete("id2")
    assert dropped == [("id1", True), ("id2", True), ("id2", False)]
    assert world.runtime.active_session is None
    assert world.runtime.list_sessions() == []


def test_R1_12_a_flat_name_warns_and_forwards_to_its_facet() -> None:
    class Checkpoints:
        def latest_snapshot(self, session_id: str) -> None: ...
        def delete_all(self, session_id: str) -> None: ...

        def __getattr__(self, name: str) -> Any:
            return lambda *args, **options: (name, args, options)

    runtime = World(checkpoints=Checkpoints()).runtime
    for flat, name in [
        ("rollback_to_checkpoint", "rollback"),
        ("fork_from_checkpoint", "fork"),
        ("create_checkpoint", "create"),
        ("list_checkpoints", "list"),
        ("get_latest_checkpoint", "latest"),
    ]:
        with pytest.warns(DeprecationWarning, match=f"{flat} is now checkpoints.{name}") as caught:
            assert getattr(runtime, flat)("s", 1, to=2) == (name, ("s", 1), {"to": 2})
        assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="create_session is now create"):
        created = runtime.create_session(HELPER)
    with pytest.warns(DeprecationWarning, match="get_active_session is now active_session"):
        assert runtime.get_active_session() == created
    with pytest.warns(DeprecationWarning, match="resume_session is now resume"):
        assert runtime.resume_session(created.id) == created
    with pytest.warns(DeprecationWarning, match="delete_session is now delete"):
        runtime.delete_session(created.id)
    assert runtime.active_session is None


def test_R1_12_without_checkpoints_their_facet_says_what_to_pass() -> None:
    with pytest.raises(LocalError, match="pass checkpoints="):
        _ = World().runtime.checkpoints
