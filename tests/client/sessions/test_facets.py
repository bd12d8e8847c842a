"""A runtime over a replica: its checkpoints and its log are at hand, offline too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.wire import Wire

from syncline.client import Replica
from syncline.client.sessions import (
    AgentDefinition,
    ReplicaSessionStore,
    SendMessage,
    SessionRuntime,
    WriteMetadata,
)
from syncline.sync import NotFound, SessionConflict

HELPER = AgentDefinition("helper")


@pytest.fixture
def replica(folder: Path) -> Iterator[Replica]:
    with Replica(folder / "r.db", durability="normal") as made:
        yield made


def test_R1_11_a_rollback_is_a_change_like_any_other_and_the_version_goes_on(
    replica: Replica,
) -> None:
    runtime = SessionRuntime(ReplicaSessionStore(replica))
    id_ = runtime.create(HELPER).id
    runtime.execute(id_, SendMessage("kept"))
    checkpoint = runtime.checkpoints.create(id_, "before")
    before = runtime.get_session(id_)
    runtime.execute(id_, SendMessage("rolled back"))
    runtime.execute(id_, WriteMetadata("later", 1))
    draft = runtime.get_session(id_)
    runtime.checkpoints.rollback(id_, checkpoint.id)
    after = runtime.get_session(id_)
    assert after.state == before.state
    assert after.version == draft.version + 1
    for stale in (before, draft):
        with pytest.raises(SessionConflict):
            runtime.repository.save(stale.suspended())
    with pytest.warns(DeprecationWarning, match="checkpoints.rollback"):
        runtime.rollback_to_checkpoint(id_, checkpoint.id)
    assert runtime.get_session(id_).state == before.state
    assert runtime.checkpoints.latest(id_) == checkpoint
    assert runtime.checkpoints.list(id_) == [checkpoint]


def test_R1_11_a_fork_from_a_checkpoint_is_a_session_of_the_runtime(replica: Replica) -> None:
    runtime = SessionRuntime(ReplicaSessionStore(replica))
    id_ = runtime.create(HELPER).id
    runtime.execute(id_, SendMessage("kept"))
    checkpoint = runtime.checkpoints.create(id_)
    runtime.execute(id_, SendMessage("later"))
    source = runtime.get_session(id_)
    fork = runtime.get_session(runtime.checkpoints.fork(id_, checkpoint).id)
    assert [message.content for message in fork.state.messages] == ["kept"]
    assert (fork.parent_id, fork.definition) == (id_, source.definition)
    runtime.execute(fork.id, SendMessage("on its own"))
    assert runtime.get_session(id_) == source


def test_R1_5_resuming_reads_the_log_of_the_replica_and_writes_nothing(replica: Replica) -> None:
    runtime = SessionRuntime(ReplicaSessionStore(replica))
    created = runtime.create(HELPER)
    session = replica.session(created.id)
    session.append("subagent.spawned", {"sessionId": "child", "agent": "helper"})
    session.append("session.artifact", {"artifactId": "a1"})
    runtime.checkpoints.create(created.id)
    waiting = len(session.pending())
    again = SessionRuntime(ReplicaSessionStore(replica))
    resumed = again.resume(created.id)
    assert resumed == created == again.active_session
    assert resumed.transient is not None
    assert list(resumed.transient["subagents"]) == ["child"]
    assert resumed.transient["cards"] == [{"artifactId": "a1"}]
    assert len(session.pending()) == waiting


def test_R1_7_a_delete_takes_the_checkpoints_along_on_every_device(wire: Wire) -> None:
    ann, bob = wire.open("ann"), wire.open("bob")
    mine, theirs = (SessionRuntime(ReplicaSessionStore(end)) for end in (ann, bob))
    kept, gone = mine.create(HELPER).id, mine.create(HELPER).id
    for id_ in (kept, gone):
        mine.checkpoints.create(id_)
    wire.sync(ann)
    wire.sync(bob)
    assert len(theirs.checkpoints.list(gone)) == 1
    mine.delete(gone)
    mine.delete(gone)
    mine.delete("nobody")
    assert mine.active_session is None
    wire.sync(ann)
    wire.sync(bob)
    for end, runtime in ((ann, mine), (bob, theirs)):
        assert [header.id for header in runtime.list_sessions()] == [kept]
        assert len(runtime.checkpoints.list(kept)) == 1
        assert list(end.session(gone).records("$checkpoint")) == []
    with pytest.raises(NotFound):
        mine.checkpoints.list("nobody")


def test_R1_7_the_store_alone_takes_them_along_as_well(wire: Wire) -> None:
    ann = wire.open("ann")
    store = ReplicaSessionStore(ann)
    id_ = SessionRuntime(store).create(HELPER).id
    SessionRuntime(store).checkpoints.create(id_)
    store.delete(id_)
    assert list(ann.session(id_).records("$checkpoint")) == []
    assert len(ann.session(id_).pending()) == 3
