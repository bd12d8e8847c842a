"""Sessions in a server's store: the contract, and what replicas see of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.wire import SECOND, Wire

from syncline.client import Replica
from syncline.client.sessions import (
    AgentDefinition,
    AgentSession,
    ReplicaSessionStore,
    SendMessage,
    SessionRuntime,
    SuspendSession,
    WriteMetadata,
)
from syncline.server import MemoryStore, ServerSessionStore, SqliteStore, Store, SyncServer
from syncline.sync import Busy, LocalError, SessionConflict, SessionNotFound, TooLarge
from syncline.sync.sessions import SessionStore
from syncline.testing import SessionStoreContract

HELPER = AgentDefinition("helper", "A helper")


class TestServerMemoryStore(SessionStoreContract):
    @pytest.fixture
    def store(self) -> Iterator[SessionStore]:
        self.below = MemoryStore()
        yield ServerSessionStore(self.below)

    def reopened(self, store: SessionStore) -> SessionStore:
        return ServerSessionStore(self.below)


class TestServerSqliteStore(SessionStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[SessionStore]:
        below = SqliteStore(tmp_path / "server.db")
        yield ServerSessionStore(below)
        below.close()


def test_what_is_stored_in_a_file_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    below = SqliteStore(tmp_path / "server.db")
    runtime = SessionRuntime(ServerSessionStore(below))
    session = runtime.execute(runtime.create(HELPER).id, SendMessage("hi"))
    below.close()
    below = SqliteStore(tmp_path / "server.db")
    assert ServerSessionStore(below).load(session.id) == session
    below.close()


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    made = Wire(folder=tmp_path)
    yield made
    made.close()


class World:
    """A replica and the server's runtime, on one clock."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.replica = wire.open("ann")
        self.ann = SessionRuntime(ReplicaSessionStore(self.replica))
        self.store = ServerSessionStore(wire.store, clock=lambda: wire.now)
        self.server = SessionRuntime(self.store)

    def sync(self) -> None:
        self.wire.now += SECOND
        self.wire.sync(self.replica)


def test_a_session_of_the_server_is_on_the_replica_and_the_other_way_round(wire: Wire) -> None:
    world = World(wire)
    id_ = world.server.create(HELPER).id
    world.sync()
    world.ann.execute(id_, SendMessage("from ann"))
    world.sync()
    world.server.execute(id_, SendMessage("from the server"))
    world.sync()
    mine, theirs = world.ann.get_session(id_), world.server.get_session(id_)
    assert mine.state == theirs.state
    assert [message.content for message in mine.state.messages] == ["from ann", "from the server"]
    assert {entry.client for entry in wire.log(id_)} == {"ann", "runtime-store"}
    assert world.server.list_sessions() == [theirs.header]
    assert theirs.header.label == "A helper"


def test_R2_9_an_arriving_change_makes_a_stale_save_a_conflict_and_nothing_else_does(
    wire: Wire,
) -> None:
    world = World(wire)
    id_ = world.server.create(HELPER).id
    world.sync()
    loaded = world.server.get_session(id_)
    session = world.replica.session(id_)
    session.put("notes", "n1", {"title": "another collection"})
    session.append("user.message", {"text": "an event"})
    world.sync()
    assert world.server.get_session(id_) == loaded
    saved = world.store.save(loaded.suspended())
    world.sync()
    world.ann.execute(id_, WriteMetadata("who", "ann"))
    world.sync()
    with pytest.raises(SessionConflict):
        world.store.save(saved.resumed())
    fresh = world.server.execute(id_, WriteMetadata("and", "the server"))
    assert fresh.state.metadata == {"who": "ann", "and": "the server"}
    assert fresh.version > saved.version > loaded.version


def test_a_save_meets_what_waits_on_a_replica_field_by_field(wire: Wire) -> None:
    world = World(wire)
    id_ = world.server.create(HELPER).id
    world.sync()
    world.ann.execute(id_, WriteMetadata("who", "ann"))
    world.server.execute(id_, SuspendSession())
    world.sync()
    mine, theirs = world.ann.get_session(id_), world.server.get_session(id_)
    assert (mine.state, mine.status) == (theirs.state, theirs.status)
    assert (mine.status, mine.state.metadata) == ("suspended", {"who": "ann"})
    assert world.replica.session(id_).conflicts() == []


def test_a_deletion_on_the_server_reaches_the_replica(wire: Wire) -> None:
    world = World(wire)
    id_ = world.server.create(HELPER).id
    world.server.execute(id_, SendMessage("hi"))
    world.sync()
    world.ann.checkpoints.create(id_)
    world.sync()
    world.server.delete(id_)
    world.server.delete(id_)
    world.sync()
    assert world.ann.list_sessions() == []
    assert list(world.replica.session(id_).records("$checkpoint")) == []


def test_a_save_that_is_too_large_stores_nothing_and_takes_no_number(wire: Wire) -> None:
    world = World(wire)
    id_ = world.server.create(HELPER).id
    with pytest.raises(TooLarge):
        world.server.execute(id_, WriteMetadata("huge", "x" * (1 << 20)))
    assert world.server.execute(id_, WriteMetadata("small", "x")).version == 2
    assert [(entry.client, entry.n) for entry in wire.log(id_)] == [
        ("runtime-store", 1),
        ("runtime-store", 2),
    ]


def test_a_session_larger_than_a_page_is_read_whole() -> None:
    store = ServerSessionStore(MemoryStore())
    runtime = SessionRuntime(store)
    id_ = runtime.create(HELPER).id
    session = runtime.get_session(id_)
    messages = SendMessage("x").execute_on(session).state.messages * 600
    session = store.save(session.with_state(session.state.with_message(*messages)))
    assert len(session.state.messages) == 600
    assert store.load(id_) == session


class Interrupted:
    """A store where somebody else always writes just before a transaction."""

    def __init__(self, below: Store, other: ServerSessionStore, times: int) -> None:
        self._below, self._other, self.times = below, other, times

    def __getattr__(self, name: str) -> object:
        if name == "transaction" and self.times:
            self.times -= 1
            session = self._other.load("notes")
            assert session is not None
            self._other.save(session)
        return getattr(self._below, name)


def test_a_write_of_another_process_between_read_and_write_is_looked_at_again() -> None:
    below = MemoryStore()
    other = ServerSessionStore(below)
    created = other.create(AgentSession.fresh("notes", HELPER))
    meeting = ServerSessionStore(Interrupted(below, other, times=1))  # type: ignore[arg-type]
    with pytest.raises(SessionConflict, match="stored as version 2"):
        meeting.save(created)
    never = ServerSessionStore(Interrupted(below, other, times=10**6))  # type: ignore[arg-type]
    with pytest.raises(Busy, match="all the time"):
        never.delete("notes")


def test_it_tells_of_what_it_has_committed() -> None:
    told: list[tuple[int, int, bool]] = []
    store = ServerSessionStore(
        MemoryStore(),
        committed=lambda done: told.append((done.previous_seq, done.head.seq, done.created)),
    )
    created = store.create(AgentSession.fresh("s1", HELPER))
    store.save(created)
    assert told == [(0, 1, True), (1, 2, False)]


def test_beside_a_running_server_connected_replicas_see_a_save_at_once(tmp_path: Path) -> None:
    with SyncServer(MemoryStore(), port=0) as server, Replica(tmp_path / "ann.db") as ann:
        runtime = SessionRuntime(server.session_store())
        id_ = runtime.create(HELPER).id
        with ann.connect(server.url) as connection:
            connection.wait_synced(10)
            seen = threading.Event()
            ann.session(id_).watch(lambda told: seen.set(), "agent_messages")
            runtime.execute(id_, SendMessage("live"))
            assert seen.wait(10)
            local = SessionRuntime(ReplicaSessionStore(ann))
            local.execute(id_, WriteMetadata("who", "ann"))
            connection.wait_synced(10)
        assert runtime.get_session(id_).state == local.get_session(id_).state
        assert len(runtime.get_session(id_).state.messages) == 1
        with pytest.raises(SessionNotFound):
            runtime.get_session("nobody")


def test_a_session_that_is_made_while_replicas_are_connected_is_announced(tmp_path: Path) -> None:
    with SyncServer(MemoryStore(), port=0) as server, Replica(tmp_path / "ann.db") as ann:
        runtime = SessionRuntime(server.session_store())
        with ann.connect(server.url) as connection:
            connection.wait_synced(10)
            ids = {runtime.create(HELPER).id for _ in range(3)}
            local = ReplicaSessionStore(ann)
            with ann._core.changed:
                arrived = ann._core.changed.wait_for(
                    lambda: {header.id for header in local.list_headers()} == ids, 10
                )
        assert arrived


def test_a_store_of_a_server_that_does_not_run_says_so(tmp_path: Path) -> None:
    server = SyncServer(MemoryStore(), port=0)
    with pytest.raises(LocalError, match="does not run"):
        server.session_store()
    with server:
        store = server.session_store()
        store.create(AgentSession.fresh("s1", HELPER))
    with pytest.raises(LocalError, match="does not run"):
        store.load("s1")
