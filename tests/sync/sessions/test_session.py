"""Sessions as data, and the actions on them."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, dataclass, replace
from typing import Any

import pytest

from syncline.sync import InvalidValue, ModelLocked
from syncline.sync.sessions import (
    AgentDefinition,
    AgentSession,
    AgentState,
    ChangeModel,
    ChangeSystemPrompt,
    ClearSession,
    ExecutionStatus,
    ForkSession,
    Message,
    ResumeSession,
    SendMessage,
    SessionAction,
    SessionHeader,
    SessionStatus,
    SuspendSession,
    TaskItem,
    TaskStatus,
    UpdateTask,
    WriteMetadata,
)

LOCKED = AgentDefinition("helper", "A helper", system_prompt="Help.", model="m1")
FREE = replace(LOCKED, model_locked=False)
STATE = AgentState(
    messages=(Message.user("hi", id="m1"), Message.assistant("hello", id="m2")),
    metadata={"ticket": "OPS-142"},
    task="sum it up",
    system_prompt="Be brief.",
    model="m2",
    execution=ExecutionStatus.COMPLETED,
    data={"job": [1, 2]},
)
SESSION = AgentSession(
    SessionHeader("s1", "helper", "A helper", "s0", SessionStatus.ACTIVE, 7, 10, 20), FREE, STATE
)


def test_R2_1_a_session_is_header_definition_and_state() -> None:
    assert (SESSION.id, SESSION.parent_id, SESSION.version) == ("s1", "s0", 7)
    assert (SESSION.header.agent, SESSION.header.label) == ("helper", "A helper")
    assert (SESSION.header.created_at, SESSION.header.updated_at) == (10, 20)


def test_R2_1_a_session_does_not_change_and_every_change_is_a_new_one() -> None:
    before = SESSION.to_dict()
    with pytest.raises(FrozenInstanceError):
        SESSION.header = SESSION.header  # type: ignore[misc]
    with pytest.raises(TypeError):
        SESSION.state.metadata["ticket"] = "x"  # type: ignore[index]
    assert SESSION.suspended() is not SESSION
    assert SESSION.with_state(AgentState()).state == AgentState()
    assert SESSION.to_dict() == before


def test_a_session_is_a_copy_of_what_it_was_made_of() -> None:
    tags, parts = ["a"], [{"text": "x"}]
    model = {"name": "m"}
    state = AgentState((Message.user(parts),), {"tags": tags}, model=model)
    tags.append("b")
    parts[0]["text"] = model["name"] = "y"
    assert state.metadata == {"tags": ["a"]}
    assert state.messages[0].content == [{"text": "x"}]
    assert state.model == {"name": "m"}


def test_a_session_comes_back_from_its_plain_data() -> None:
    row = SESSION.to_dict()
    assert AgentSession.from_dict(json.loads(json.dumps(row))) == SESSION
    row["state"]["metadata"]["ticket"] = "x"
    row["state"]["data"]["job"].append(3)
    assert SESSION.state == STATE


@pytest.mark.parametrize(
    "damage",
    [
        lambda row: row.pop("state"),
        lambda row: row["header"].pop("version"),
        lambda row: row["header"].update(status="odd"),
        lambda row: row["header"].update(id="../x"),
        lambda row: row.update(header=5),
        lambda row: row["state"].update(messages=[{"role": "user"}]),
        lambda row: row["state"].update(task=[{"content": "x", "status": "odd"}]),
        lambda row: row["state"].update(metadata=[]),
        lambda row: row["definition"].update(model=5),
    ],
)
def test_data_that_is_no_session_is_refused(damage: Any) -> None:
    row = SESSION.to_dict()
    damage(row)
    with pytest.raises(InvalidValue):
        AgentSession.from_dict(row)


@pytest.mark.parametrize(
    "make",
    [
        lambda: AgentState(metadata={"bad": object()}),
        lambda: AgentState(metadata={"": 1}),
        lambda: AgentState(metadata={"x" * 247: 1}),
        lambda: AgentState(metadata={5: 1}),  # type: ignore[dict-item]
        lambda: AgentState(data={"nan": float("nan")}),
        lambda: AgentState(task=["text"]),  # type: ignore[arg-type]
        lambda: AgentState(model=5),  # type: ignore[arg-type]
        lambda: AgentState(system_prompt=5),  # type: ignore[arg-type]
        lambda: Message("user", {1, 2}),
        lambda: Message("", "text"),
        lambda: Message("user", "text", "a\nb"),
        lambda: AgentDefinition("lone \ud800 surrogate"),
        lambda: AgentDefinition("helper", tools=(5,)),  # type: ignore[arg-type]
        lambda: TaskItem(5),  # type: ignore[arg-type]
        lambda: AgentSession.fresh("not an id", LOCKED),
        lambda: AgentSession.fresh("s1", LOCKED, parent_id="../s0"),
    ],
)
def test_what_no_record_can_hold_is_refused_when_it_is_made(make: Any) -> None:
    with pytest.raises(InvalidValue):
        make()


def test_a_key_whose_value_is_none_is_not_there() -> None:
    state = STATE.with_metadata("ticket", None).with_data("job", None)
    assert (state.metadata, state.data) == ({}, {})
    assert AgentState(metadata={"a": None}, data={"b": None}) == AgentState()


def test_a_state_without_prompt_or_model_has_those_of_the_definition() -> None:
    session = AgentSession.fresh("s1", LOCKED)
    assert (session.system_prompt, session.model) == ("Help.", "m1")
    assert (SESSION.system_prompt, SESSION.model) == ("Be brief.", "m2")


def test_a_fresh_session_is_active_and_not_stored() -> None:
    session = AgentSession.fresh("s1", LOCKED)
    assert session.header == SessionHeader("s1", "helper", "A helper")
    assert (session.version, session.status) == (0, SessionStatus.ACTIVE)


# The two lifecycles.

PLAIN: list[SessionAction] = [
    SendMessage("hi"),
    ClearSession(),
    ChangeSystemPrompt("x"),
    ChangeModel("m3"),
    WriteMetadata("k", "v"),
    UpdateTask("x"),
]


@pytest.mark.parametrize("status", list(SessionStatus))
@pytest.mark.parametrize("action", PLAIN, ids=lambda action: type(action).__name__)
def test_R2_2_the_status_changes_only_when_an_action_says_so(
    action: SessionAction, status: SessionStatus
) -> None:
    assert action.execute_on(SESSION.with_status(status)).status is status


def test_R2_2_the_status_of_a_run_is_one_thing_and_the_sessions_another() -> None:
    failed = SESSION.with_state(replace(STATE, execution=ExecutionStatus.FAILED))
    assert failed.status is SessionStatus.ACTIVE
    assert SESSION.failed().state.execution is ExecutionStatus.COMPLETED
    assert [status.value for status in ExecutionStatus] == [
        *("pending", "in_progress", "completed", "stopped", "failed")
    ]
    assert [status.value for status in SessionStatus] == [
        *("active", "suspended", "completed", "failed", "deleted")
    ]


# The actions.


def test_R2_10_a_message_is_appended_and_its_run_is_pending() -> None:
    state = SendMessage("more").execute_on(SESSION).state
    assert state.messages == (*STATE.messages, Message.user("more"))
    assert state.execution is ExecutionStatus.PENDING
    assert replace(state, messages=STATE.messages, execution=STATE.execution) == STATE


@dataclass
class Words:
    text: str

    def __str__(self) -> str:
        return self.text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Words("as text"), Message.user("as text")),
        ([{"type": "image"}], Message.user([{"type": "image"}])),
        (Message("system", "x", "id"), Message("system", "x", "id")),
    ],
)
def test_R2_10_a_message_may_be_text_parts_or_a_message(given: Any, message: Message) -> None:
    assert SendMessage(given).execute_on(SESSION).state.messages[-1] == message


@pytest.mark.parametrize(
    ("ended", "shown"),
    [
        (ExecutionStatus.IN_PROGRESS, ExecutionStatus.COMPLETED),
        (ExecutionStatus.COMPLETED, ExecutionStatus.COMPLETED),
        (ExecutionStatus.STOPPED, ExecutionStatus.STOPPED),
        (ExecutionStatus.FAILED, ExecutionStatus.FAILED),
    ],
)
def test_R2_10_a_loop_runs_on_the_message_and_its_state_is_the_sessions(
    ended: ExecutionStatus, shown: ExecutionStatus
) -> None:
    def loop(definition: AgentDefinition, state: AgentState) -> AgentState:
        assert definition == FREE
        assert state.execution is ExecutionStatus.IN_PROGRESS
        answered = state.with_message(Message.assistant(f"to {state.messages[-1].content}"))
        return replace(answered, execution=ended)

    session = SendMessage("ping", loop).execute_on(SESSION)
    assert session.state.messages[-1] == Message.assistant("to ping")
    assert session.state.execution is shown
    assert session.status is SessionStatus.ACTIVE


def test_R2_10_suspend_and_resume_change_the_status_and_nothing_else() -> None:
    suspended = SuspendSession().execute_on(SESSION)
    assert suspended.status is SessionStatus.SUSPENDED
    assert ResumeSession().execute_on(suspended) == SESSION


def test_R2_10_clear_keeps_metadata_prompt_id_and_definition() -> None:
    cleared = ClearSession().execute_on(SESSION)
    assert cleared.header == SESSION.header
    assert cleared.definition == FREE
    assert cleared.state == replace(STATE, messages=(), data={}, execution=ExecutionStatus.PENDING)


def test_R2_10_a_fork_has_a_new_id_version_0_and_its_source_as_parent() -> None:
    fork = ForkSession("s2").execute_on(SESSION.suspended())
    assert fork.header == SessionHeader("s2", "helper", "A helper", "s1")
    assert fork.state == STATE.for_next_execution()
    assert fork.definition == FREE


@pytest.mark.parametrize(
    "action",
    [
        SendMessage("hi"),
        SuspendSession(),
        ResumeSession(),
        ClearSession(),
        ForkSession("s2"),
        ChangeSystemPrompt("Be long."),
        ChangeModel("m3"),
        WriteMetadata("a", 1),
        UpdateTask("another"),
    ],
)
def test_R3_12_no_action_makes_another_agent_of_a_session(action: SessionAction) -> None:
    after = action.execute_on(SESSION)
    assert after.definition == SESSION.definition
    assert after.header.agent == "helper"


def test_R2_10_a_locked_model_is_changed_on_a_fork_only() -> None:
    locked = replace(SESSION, definition=LOCKED)
    with pytest.raises(ModelLocked, match="s1"):
        ChangeModel("m3").execute_on(locked)
    fork = ForkSession("s2").execute_on(locked)
    assert ChangeModel({"name": "m3"}).execute_on(fork).model == {"name": "m3"}
    assert ChangeModel("m3").execute_on(SESSION).model == "m3"
    with pytest.raises(ModelLocked):
        ChangeModel("m3").execute_on(ForkSession("s2", model_locked=True).execute_on(locked))


def test_R2_10_prompt_metadata_and_task_are_changed_alone() -> None:
    cases: list[tuple[SessionAction, AgentState]] = [
        (ChangeSystemPrompt(Words("new")), replace(STATE, system_prompt="new")),
        (WriteMetadata("k", [1]), replace(STATE, metadata={"ticket": "OPS-142", "k": [1]})),
        (WriteMetadata("ticket", None), replace(STATE, metadata={})),
        (UpdateTask("new"), replace(STATE, task="new")),
    ]
    for action, expected in cases:
        assert action.execute_on(SESSION) == SESSION.with_state(expected)


def test_R2_10_a_task_may_be_a_list_of_items() -> None:
    items = [TaskItem("first", TaskStatus.COMPLETED), TaskItem("second")]
    state = UpdateTask(items).execute_on(SESSION).state
    assert state.task == tuple(items)
    assert AgentState.from_dict(state.to_dict()) == state


def test_R2_10_an_action_of_ones_own_is_any_object_that_makes_a_session() -> None:
    class Archive:
        def execute_on(self, session: AgentSession) -> AgentSession:
            return session.with_state(session.state.with_metadata("why", "done")).completed()

    archived = Archive().execute_on(SESSION)
    assert (archived.status, archived.state.metadata["why"]) == (SessionStatus.COMPLETED, "done")
    assert SESSION.deleted().status is SessionStatus.DELETED
