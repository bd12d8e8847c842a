"""Finding sessions in a replica: filters, pages, and whose subagents they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.client import Replica
from syncline.client.sessions import (
    AgentDefinition,
    Checkpoints,
    ListedSession,
    ReplicaSessionStore,
    SessionQuery,
    SessionRuntime,
    SessionStatus,
    SuspendSession,
    WriteMetadata,
    children,
    list_sessions,
)
from syncline.sync import InvalidValue, NotFound
from syncline.sync.sessions import list_page

LISTED = st.lists(
    st.builds(
        lambda n, at, agent, flag: ListedSession(
            f"s{n}", agent, "", SessionStatus.ACTIVE, None, False, at, at, {"flag": flag}
        ),
        st.integers(0, 40),
        st.integers(0, 5),
        st.sampled_from(["a", "b"]),
        st.booleans(),
    ),
    unique_by=lambda one: one.id,
    max_size=30,
)


@given(LISTED, st.integers(1, 8), st.sampled_from([None, "a"]))
def test_R3_2_pages_put_together_are_the_whole_list_whatever_the_limit(
    sessions: list[ListedSession], limit: int, agent: str | None
) -> None:
    query = {"agent": agent, "metadata": {"flag": True}, "limit": limit}
    found: list[ListedSession] = []
    page = list_page(sessions, SessionQuery(**query))  # type: ignore[arg-type]
    found += page.sessions
    while page.cursor is not None:
        page = list_page(sessions, SessionQuery(**query, cursor=page.cursor))  # type: ignore[arg-type]
        assert page.sessions
        found += page.sessions
    wanted = [s for s in sessions if s.metadata["flag"] and agent in (None, s.agent)]
    assert found == sorted(wanted, key=lambda one: one.key, reverse=True)


@pytest.mark.parametrize("cursor", ["", "x", "12", "12.", ".s", "²³.s"])
def test_a_cursor_that_is_none_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidValue, match="is no cursor"):
        SessionQuery(cursor=cursor)


@pytest.mark.parametrize("limit", [0, 1001, True])
def test_a_page_has_a_sane_size(limit: int) -> None:
    with pytest.raises(InvalidValue, match="1 to 1000"):
        SessionQuery(limit=limit)


def test_R3_11_a_replica_lists_by_agent_status_parent_and_metadata(folder: Path) -> None:
    with Replica(folder / "a.db") as replica:
        runtime = SessionRuntime(ReplicaSessionStore(replica))
        one = runtime.create(AgentDefinition("helper")).id
        two = runtime.create(AgentDefinition("helper")).id
        other = runtime.create(AgentDefinition("critic")).id
        runtime.execute(one, WriteMetadata("team", {"name": "blue", "tags": [1, 2]}))
        runtime.execute(two, SuspendSession())
        fork = Checkpoints(replica.session(one)).fork().id

        def found(**query: object) -> set[str]:
            page = list_sessions(replica, SessionQuery(**query))  # type: ignore[arg-type]
            return {session.id for session in page.sessions}

        assert found() == {one, two, other, fork}
        assert found(agent="critic") == {other}
        assert found(status="suspended") == {two}
        assert found(parent=one) == {fork}
        assert found(metadata={"team": {"tags": [2]}}) >= {one}
        assert found(metadata={"name": "blue"}) == set()
        replica.delete_session(other)
        assert found(agent="critic") == set()
        assert found(status="deleted") == {other}


def test_R3_2_children_are_the_subagents_and_no_forks(folder: Path) -> None:
    with Replica(folder / "a.db") as replica:
        parent = replica.create_session("parent")
        Checkpoints(parent).fork()
        child = replica.create_session("child")
        child.patch("$session", "header", {"parent": parent.id, "subagent": {"turn": "t"}})
        assert [one.id for one in children(replica, parent.id)] == [child.id]
        assert children(replica, child.id) == ()
        with pytest.raises(NotFound):
            children(replica, "nobody")
