"""Resuming in three layers: the row, the latest checkpoint, and what only the log knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest

from syncline.sync.sessions import (
    AgentDefinition,
    AgentSession,
    CheckpointSnapshot,
    MemorySessionStore,
    SessionRuntime,
    SessionSaved,
    SuspendSession,
    WriteMetadata,
    transient_state,
)

HELPER = AgentDefinition("helper")


@dataclass
class Checkpoints:
    snapshot: CheckpointSnapshot | None = None

    def latest_snapshot(self, session_id: str) -> CheckpointSnapshot | None:
        return self.snapshot

    def delete_all(self, session_id: str) -> None:
        self.snapshot = None


@dataclass
class Logged:
    type: str
    payload: dict[str, Any]


@dataclass
class Log:
    listed: list[Logged]

    def events(self, session_id: str, /) -> list[Logged]:
        return self.listed


class World:
    def __init__(self) -> None:
        self.clock = 1000
        self.store = MemorySessionStore(lambda: self.clock)
        ids = (f"id{n}" for n in count(1))
        self.runtime = SessionRuntime(self.store, new_id=lambda: next(ids))
        self.row = self.runtime.create(HELPER)
        for key in ("a", "b"):
            self.clock += 10
            self.row = self.runtime.execute("id1", WriteMetadata(key, 1))

    def snapshot(self, version: int, at: int, **metadata: Any) -> Checkpoints:
        session = self.row.with_state(replace(self.row.state, metadata=metadata))
        return Checkpoints(CheckpointSnapshot("c1", version, at, session))


def test_R1_5_without_more_layers_the_row_is_the_session() -> None:
    world = World()
    assert world.runtime.resume("id1") == world.row
    assert world.runtime.active_session == world.row


@pytest.mark.parametrize(
    ("version", "at", "wins"),
    [
        (3, 1020, True),  # as recent
        (4, 1030, True),  # it was about to be version 4, and the row's write was lost
        (3, 1030, True),
        (2, 1010, False),
        (2, 1030, False),  # taken later, but of an older version
        (4, 1019, False),  # a version of before a store was restored: its time is older
    ],
)
def test_R1_5_a_checkpoint_wins_when_it_is_at_least_as_recent(
    version: int, at: int, wins: bool
) -> None:
    world = World()
    session = world.runtime.resume("id1", checkpoints=world.snapshot(version, at, saved=True))
    expected = {"saved": True} if wins else {"a": 1, "b": 1}
    assert session.state.metadata == expected
    stored = world.store.load("id1")
    assert stored is not None
    assert stored.state.metadata == expected
    assert (stored.version, session.id) == (4 if wins else 3, "id1")


def test_R1_5_a_checkpoint_that_won_never_rolls_back_what_came_after() -> None:
    world = World()
    source = world.snapshot(9, 1030, saved=True)
    world.clock = 1030
    first = world.runtime.resume("id1", checkpoints=source)
    again = world.runtime.resume("id1", checkpoints=source)
    assert (first, first.version) == (again, 4)
    world.runtime.execute("id1", WriteMetadata("later", 1))
    resumed = world.runtime.resume("id1", checkpoints=source)
    assert resumed.state.metadata == {"saved": True, "later": 1}


def test_R1_5_a_checkpoint_keeps_identity_and_lineage_of_the_row() -> None:
    world = World()
    source = world.snapshot(3, 1020)
    assert source.snapshot is not None
    strange = replace(source.snapshot.session.header, parent_id="x", created_at=1, agent="y")
    source.snapshot = replace(
        source.snapshot, session=replace(source.snapshot.session, header=strange).completed()
    )
    header = world.runtime.resume("id1", checkpoints=source).header
    expected = replace(world.row.header, status=header.status, version=4)
    assert replace(header, updated_at=expected.updated_at) == expected
    assert header.status == "completed"


def test_R1_5_a_row_that_is_written_meanwhile_is_the_fresher_one() -> None:
    world = World()
    source = world.snapshot(3, 1020, saved=True)

    class Overtaking(Checkpoints):
        def latest_snapshot(self, session_id: str) -> CheckpointSnapshot | None:
            world.runtime.execute("id1", WriteMetadata("who", "other"))
            return self.snapshot

    session = world.runtime.resume("id1", checkpoints=Overtaking(source.snapshot))
    assert session.state.metadata == {"a": 1, "b": 1, "who": "other"}


def test_R1_5_resuming_twice_gives_two_handles_on_one_state_and_the_later_is_active() -> None:
    world = World()
    other = world.runtime.create(HELPER)
    source, log = world.snapshot(3, 1020, saved=True), Log([])
    told: list[Any] = []
    world.runtime.listen(told.append)
    first = world.runtime.resume("id1", checkpoints=source, log=log)
    second = world.runtime.resume("id1", checkpoints=source, log=log)
    assert first == second
    assert first is not second
    assert world.runtime.active_session is second
    world.runtime.resume(other.id)
    assert world.runtime.active_session == other
    assert [event for event in told if isinstance(event, SessionSaved)] == [
        SessionSaved("id1", 4, second.status)
    ]


EVENTS = [
    Logged("user.message", {"messageId": "m1", "text": "go"}),
    Logged("tool.call.decision", {"callId": "c1", "decision": "allow"}),
    Logged("subagent.spawned", {"sessionId": "child", "agent": "helper"}),
    Logged("subagent.completed", {"sessionId": "child", "stopReason": "completed"}),
    Logged("sandbox.snapshotted", {"snapshotId": "x1"}),
    Logged("session.artifact", {"artifactId": "a1", "title": "report"}),
    Logged("something.new", {"kept": True}),
]

TRANSIENT = {
    "resolved_interrupts": {"c1": {"callId": "c1", "decision": "allow"}},
    "subagents": {
        "child": {
            "sessionId": "child",
            "agent": "helper",
            "stopReason": "completed",
            "last": "completed",
        }
    },
    "exports": [{"snapshotId": "x1"}],
    "cards": [{"artifactId": "a1", "title": "report"}],
}


def test_R1_5_the_log_rebuilds_what_no_row_has_and_it_is_never_written_back() -> None:
    world = World()
    session = world.runtime.resume("id1", log=Log(EVENTS))
    assert session.transient == TRANSIENT
    assert session == world.row
    after = world.runtime.execute("id1", SuspendSession())
    assert after.transient is None
    stored = world.store.load("id1")
    assert stored is not None
    assert stored.transient is None
    assert "transient" not in stored.to_dict()
    active = world.runtime.active_session
    assert active is not None
    assert (active.transient, active.version) == (TRANSIENT, 4)


def test_R1_5_the_fold_leaves_the_events_as_they_were() -> None:
    assert transient_state(EVENTS) == transient_state(EVENTS) == TRANSIENT


def test_R1_5_sources_given_to_the_runtime_are_those_of_every_resume() -> None:
    world = World()
    source = world.snapshot(3, 1020, saved=True)
    new_id: Callable[[], str] = lambda: "unused"  # noqa: E731
    runtime = SessionRuntime(world.store, new_id=new_id, checkpoints=source, log=Log(EVENTS))
    session: AgentSession = runtime.resume("id1")
    assert session.state.metadata == {"saved": True}
    assert session.transient == TRANSIENT
    assert runtime.checkpoints is source
