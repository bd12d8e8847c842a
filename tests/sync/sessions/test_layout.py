"""How a session lies in records: what is written comes back, and only what differs is written."""

from __future__ import annotations

from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.sync.sessions import (
    AgentDefinition,
    AgentSession,
    AgentState,
    ExecutionStatus,
    Message,
    RecordWrite,
    SessionRecords,
    SessionStatus,
    TaskItem,
    deletion,
    read_session,
    session_changes,
)

KEYS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=4)
VALUES = st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=3)
MAPS = st.dictionaries(KEYS, VALUES, max_size=3)
MESSAGES = st.lists(
    st.builds(Message, st.sampled_from(["user", "assistant"]), VALUES, st.sampled_from("abcdef")),
    max_size=6,
    unique_by=lambda message: message.id,
).map(tuple)
STATES = st.builds(
    AgentState,
    messages=MESSAGES,
    metadata=MAPS,
    task=st.text("ab", max_size=2) | st.lists(st.builds(TaskItem, st.text("ab"))).map(tuple),
    system_prompt=st.none() | st.text("ab"),
    model=st.none() | st.text("ab") | MAPS,
    execution=st.sampled_from(ExecutionStatus),
    data=MAPS,
)


class Records:
    """Records as a store holds them, with all that was ever written to them."""

    def __init__(self) -> None:
        self.records = SessionRecords()
        self.fields: dict[tuple[str, str], dict[str, Any]] = {}

    def write(self, writes: list[RecordWrite]) -> None:
        for kind, collection, id_, fields in writes:
            key = (collection, id_)
            if kind == "delete":
                del self.fields[key]
            else:
                old = self.fields.get(key, {}) if kind == "patch" else {}
                self.fields[key] = {**old, **fields}
            self.records.take(collection, id_, self.fields.get(key))


def fresh(state: AgentState) -> AgentSession:
    return AgentSession.fresh("s1", AgentDefinition("helper", "H", model={"a": [1]}), state)


@settings(max_examples=25)
@given(st.lists(st.tuples(STATES, st.sampled_from(SessionStatus)), min_size=1, max_size=4))
def test_R2_11_whatever_is_written_comes_back(steps: list[tuple[AgentState, Any]]) -> None:
    kept, clock = Records(), count(1000, 7)
    for state, status in steps:
        session = fresh(state).with_status(status)
        writes, named = session_changes(
            kept.records, session, now=next(clock), new_id=iter("").__next__
        )
        assert named == session
        kept.write(writes)
        assert read_session("s1", kept.records, version=0, updated_at=0) == session
        again, _ = session_changes(kept.records, session, now=next(clock), new_id=iter("").__next__)
        assert again == [RecordWrite("patch", "$session", "header", {"saved": True})]
    kept.write(deletion(kept.records))
    assert not kept.records.there
    assert set(kept.fields) == {("$session", "header")}


def orders(kept: Records) -> dict[str, int]:
    return {
        id_: fields["order"]
        for (collection, id_), fields in kept.fields.items()
        if collection == "agent_messages"
    }


def save(kept: Records, ids: str, now: int) -> list[str]:
    """Save messages of these ids; those of which the order was written."""
    state = AgentState(messages=tuple(Message.user("x", id=id_) for id_ in ids))
    writes, _ = session_changes(kept.records, fresh(state), now=now, new_id=iter("").__next__)
    kept.write(writes)
    return [write.id for write in writes if "order" in write.fields]


def test_a_message_that_comes_between_leaves_the_others_where_they_are() -> None:
    kept = Records()
    assert save(kept, "ab", now=1000) == ["a", "b"]
    assert orders(kept) == {"a": 1000, "b": 1001}
    assert save(kept, "abc", now=2000) == ["c"]
    assert save(kept, "xyabzc", now=3000) == ["x", "y", "z"]
    assert orders(kept) == {"x": 998, "y": 999, "a": 1000, "b": 1001, "z": 1999, "c": 2000}


def test_messages_that_change_places_are_given_new_ones() -> None:
    kept = Records()
    save(kept, "abc", now=1000)
    assert save(kept, "cab", now=2000) == ["a", "b"]
    assert orders(kept) == {"c": 1002, "a": 1003, "b": 1004}


def test_where_there_is_no_room_the_messages_behind_move_up() -> None:
    kept = Records()
    save(kept, "ab", now=1000)
    assert save(kept, "axyb", now=2000) == ["x", "y", "b"]
    assert orders(kept) == {"a": 1000, "x": 1001, "y": 1002, "b": 1003}


def test_a_message_behind_others_is_behind_them_whatever_the_clock_says() -> None:
    kept = Records()
    save(kept, "a", now=5000)
    save(kept, "ab", now=10)
    assert orders(kept) == {"a": 5000, "b": 5001}


def test_messages_without_an_id_get_one() -> None:
    state = AgentState(messages=(Message.user("a"), Message.user("b", id="own")))
    ids = iter(["new"])
    _, named = session_changes(SessionRecords(), fresh(state), now=1, new_id=lambda: next(ids))
    assert [message.id for message in named.state.messages] == ["new", "own"]
