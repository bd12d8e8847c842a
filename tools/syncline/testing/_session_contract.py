"""What every store of sessions must do. To run it against yours, subclass and define ``store``:

    class TestMyStore(SessionStoreContract):
        @pytest.fixture
        def store(self) -> Iterator[SessionStore]:
            ...

Each test gets a store of its own, empty; closing it is the fixture's. Two threads must be able to
use it at once. A store that lasts defines ``reopened`` as well, which gives the same sessions as
another process would see them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from syncline.sync import SessionConflict, SessionNotFound
from syncline.sync.sessions import (
    AgentDefinition,
    AgentSession,
    AgentState,
    ExecutionStatus,
    Message,
    SessionHeader,
    SessionRepository,
    SessionStatus,
    SessionStore,
    TaskItem,
    TaskStatus,
)

from ._extra import needs_extra

with needs_extra("syncline.testing.SessionStoreContract"):
    import pytest

DEFINITION = AgentDefinition(
    "helper",
    label="A helper",
    description="helps",
    system_prompt="Help.",
    model={"driver": "scripted", "model": "m-1", "limits": [1, 2.5, None]},
    tools=("search", "sum"),
    model_locked=False,
)

FULL = AgentState(
    messages=(
        Message.user("hello · 買い物", id="m1"),
        Message("assistant", [{"type": "text", "text": "hi"}], "m2", {"tokens": 3}),
    ),
    metadata={
        "ticket": "OPS-142",
        "tags": ["a", "b"],
        "deep": {"x": {"y": 1.0}},
        "raw": b"\x00\xff",
    },
    task=(TaskItem("first", TaskStatus.COMPLETED), TaskItem("second")),
    system_prompt="Be brief.",
    model="m-2",
    execution=ExecutionStatus.FAILED,
    data={"artifacts": [{"id": "a1"}], "$own": {"$bytes": "no bytes"}, "count": 2**62},
)
"""A state that uses everything that a session may hold."""


def fresh(id_: str = "s1", state: AgentState | None = None) -> AgentSession:
    return AgentSession.fresh(id_, DEFINITION, state)


def with_metadata(session: AgentSession, key: str, value: Any) -> AgentSession:
    return session.with_state(session.state.with_metadata(key, value))


class SessionStoreContract:
    """The conformance suite of stores of sessions; see the module."""

    @pytest.fixture
    def store(self) -> Iterator[SessionStore]:
        raise NotImplementedError("define the fixture 'store'")

    def reopened(self, store: SessionStore) -> SessionStore:
        """The same sessions, as they are read afresh."""
        return store

    def kept(self, store: SessionStore, id_: str = "s1") -> AgentSession:
        session = self.reopened(store).load(id_)
        assert session is not None
        return session

    # Creating.

    def test_a_new_session_is_stored_as_version_1(self, store: SessionStore) -> None:
        created = store.create(fresh())
        assert (created.version, created.status) == (1, SessionStatus.ACTIVE)
        assert self.kept(store) == created

    def test_the_store_stamps_the_times_of_a_new_session(self, store: SessionStore) -> None:
        header = store.create(fresh()).header
        assert 0 < header.created_at <= header.updated_at

    def test_a_time_of_creation_that_is_given_is_kept(self, store: SessionStore) -> None:
        session = fresh()
        told = replace(session.header, created_at=7, updated_at=9)
        header = store.create(replace(session, header=told)).header
        assert header.created_at == 7
        assert header.updated_at > 9

    def test_creating_needs_a_free_id(self, store: SessionStore) -> None:
        first = store.create(fresh(state=AgentState(metadata={"who": "first"})))
        with pytest.raises(SessionConflict):
            store.create(fresh(state=AgentState(metadata={"who": "second"})))
        assert self.kept(store) == first

    def test_creating_needs_version_0(self, store: SessionStore) -> None:
        session = fresh()
        with pytest.raises(SessionConflict):
            store.create(replace(session, header=replace(session.header, version=1)))
        assert store.load("s1") is None

    def test_a_taken_id_is_told_before_a_wrong_version(self, store: SessionStore) -> None:
        created = store.create(fresh())
        with pytest.raises(SessionConflict) as taken:
            store.create(created)
        with pytest.raises(SessionConflict) as plain:
            store.create(fresh())
        assert taken.value.reason == plain.value.reason

    def test_of_two_that_create_one_session_one_gets_the_conflict(
        self, store: SessionStore
    ) -> None:
        outcomes = race(lambda who: store.create(fresh(state=AgentState(metadata={"who": who}))))
        (won,) = [made for made in outcomes if isinstance(made, AgentSession)]
        (lost,) = [made for made in outcomes if not isinstance(made, AgentSession)]
        assert isinstance(lost, SessionConflict)
        assert self.kept(store) == won

    # Saving.

    def test_a_save_stores_the_next_version(self, store: SessionStore) -> None:
        session = store.create(fresh())
        for version in (2, 3, 4):
            session = store.save(with_metadata(session, "n", version))
            assert session.version == version
            assert self.kept(store) == session
        assert session.state.metadata == {"n": 4}

    def test_a_save_that_changes_nothing_is_a_version_too(self, store: SessionStore) -> None:
        created = store.create(fresh(state=FULL))
        saved = store.save(created)
        assert saved.version == 2
        assert saved.header.updated_at > created.header.updated_at
        assert (saved.state, saved.definition) == (created.state, created.definition)
        assert self.kept(store) == saved

    def test_times_of_saves_rise_and_what_the_caller_says_of_them_counts_for_nothing(
        self, store: SessionStore
    ) -> None:
        session = store.create(fresh())
        created_at, times = session.header.created_at, [session.header.updated_at]
        for told in (0, 1, 2**61):
            session = store.save(replace(session, header=replace(session.header, updated_at=told)))
            times.append(session.header.updated_at)
        assert times == sorted(set(times))
        assert times[-1] < 2**61
        assert self.kept(store).header.created_at == created_at

    def test_a_stale_save_is_a_conflict_and_the_first_writers_data_stay(
        self, store: SessionStore
    ) -> None:
        old = store.create(fresh())
        first = store.save(with_metadata(old, "who", "first"))
        with pytest.raises(SessionConflict):
            store.save(with_metadata(old, "who", "second"))
        assert self.kept(store) == first

    def test_a_version_from_the_future_is_a_conflict(self, store: SessionStore) -> None:
        created = store.create(fresh())
        for version in (0, 2, 99):
            with pytest.raises(SessionConflict):
                store.save(replace(created, header=replace(created.header, version=version)))
        assert self.kept(store) == created

    def test_a_save_of_what_is_not_there_is_not_found(self, store: SessionStore) -> None:
        with pytest.raises(SessionNotFound):
            store.save(fresh())
        assert store.load("s1") is None
        assert store.list_headers() == []

    def test_of_two_that_save_one_version_one_gets_the_conflict(self, store: SessionStore) -> None:
        loaded = store.create(fresh())
        outcomes = race(lambda who: store.save(with_metadata(loaded, "who", who)))
        (won,) = [made for made in outcomes if isinstance(made, AgentSession)]
        (lost,) = [made for made in outcomes if not isinstance(made, AgentSession)]
        assert isinstance(lost, SessionConflict)
        assert won.version == 2
        assert self.kept(store) == won

    # What is kept.

    def test_everything_that_a_session_holds_comes_back_as_it_was(
        self, store: SessionStore
    ) -> None:
        session = fresh("child", FULL)
        session = replace(session, header=replace(session.header, parent_id="s0")).suspended()
        store.create(session)
        back = self.kept(store, "child")
        assert (back.definition, back.state) == (DEFINITION, FULL)
        assert (back.parent_id, back.status) == ("s0", SessionStatus.SUSPENDED)
        assert type(back.state.metadata["deep"]["x"]["y"]) is float

    @pytest.mark.parametrize("status", list(SessionStatus))
    def test_every_status_comes_back(self, store: SessionStore, status: SessionStatus) -> None:
        saved = store.save(store.create(fresh()).with_status(status))
        assert saved.status is status
        assert self.kept(store) == saved

    def test_whatever_is_changed_and_taken_away_is_so_afterwards(self, store: SessionStore) -> None:
        session = store.create(fresh(state=FULL))
        first, second = FULL.messages
        third = Message.user("in between", id="m3")
        edited = replace(second, content="edited")
        states = [
            replace(FULL, messages=(first, third, edited)),
            replace(FULL, messages=(edited,), metadata={"tags": ["b"]}, data={"count": 1}),
            replace(FULL, messages=(Message.user("new", id="m0"), edited, first), task="text"),
            AgentState(),
            FULL,
        ]
        for state in states:
            session = store.save(session.with_state(state))
            assert session.state == state
            assert self.kept(store) == session

    def test_nothing_that_comes_out_is_shared_with_what_is_kept(self, store: SessionStore) -> None:
        given = fresh(state=AgentState.from_dict(FULL.to_dict()))
        returned = store.create(given)
        loaded = store.load("s1")
        assert loaded is not None
        for session in (given, returned, loaded):
            session.state.metadata["tags"].append("sneaked in")
            session.state.messages[1].content[0]["text"] = "sneaked in"
        kept = self.kept(store)
        assert kept.state.metadata["tags"] == ["a", "b"]
        assert kept.state.messages[1].content == [{"type": "text", "text": "hi"}]

    def test_what_is_transient_is_not_kept(self, store: SessionStore) -> None:
        created = store.create(replace(fresh(), transient={"cards": [1]}))
        saved = store.save(replace(created, transient={"cards": [2]}))
        assert (created.transient, saved.transient) == (None, None)
        assert self.kept(store).transient is None

    # Reading and deleting.

    def test_a_missing_session_is_none_and_an_error_at_the_repository(
        self, store: SessionStore
    ) -> None:
        assert store.load("s1") is None
        assert not store.exists("s1")
        with pytest.raises(SessionNotFound):
            SessionRepository(store).load("s1")

    def test_reads_change_nothing(self, store: SessionStore) -> None:
        created = store.create(fresh(state=FULL))
        for _ in range(2):
            assert store.load("s1") == created
            assert store.exists("s1")
            assert store.list_headers() == [created.header]
        assert store.save(created).version == 2

    def test_headers_are_listed_by_id_as_they_are_stored(self, store: SessionStore) -> None:
        made: dict[str, SessionHeader] = {}
        for id_ in ("b", "a", "c"):
            made[id_] = store.create(fresh(id_, FULL)).header
        loaded = store.load("a")
        assert loaded is not None
        made["a"] = store.save(loaded.suspended()).header
        assert self.reopened(store).list_headers() == [made["a"], made["b"], made["c"]]

    def test_a_deleted_session_is_gone_and_the_others_stay(self, store: SessionStore) -> None:
        store.create(fresh("gone", FULL))
        stays = store.create(fresh("stays", FULL))
        store.delete("gone")
        assert store.load("gone") is None
        assert not store.exists("gone")
        assert self.reopened(store).list_headers() == [stays.header]
        assert self.kept(store, "stays") == stays

    def test_deleting_what_is_not_there_is_silent(self, store: SessionStore) -> None:
        store.delete("s1")
        store.create(fresh())
        store.delete("s1")
        store.delete("s1")
        assert store.list_headers() == []

    def test_a_save_of_what_was_deleted_is_not_found(self, store: SessionStore) -> None:
        created = store.create(fresh())
        store.delete("s1")
        with pytest.raises(SessionNotFound):
            store.save(created)


def race(write: Callable[[str], AgentSession]) -> list[AgentSession | Exception]:
    """What two threads that begin together get."""
    gate = threading.Barrier(2, timeout=10)
    outcomes: list[AgentSession | Exception] = []

    def run(who: str) -> None:
        gate.wait()
        try:
            outcomes.append(write(who))
        except Exception as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run, args=(who,)) for who in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    return outcomes
