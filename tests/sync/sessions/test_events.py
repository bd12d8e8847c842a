"""Typed events: read, kept, refused; names on the wire are the source's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.sync.sessions.event_strategies import EVERY_EVENT
from tests.sync.strategies import FIELDS, TEXT

from syncline.sync import InvalidValue, canonical, check_fields
from syncline.sync.sessions import (
    EPHEMERAL_KINDS,
    EVENT_TYPES,
    AgentTextDelta,
    DeliveryMode,
    ModelRequestCompleted,
    RunStatus,
    SessionStatusChanged,
    StopReason,
    ToolCallCompleted,
    ToolCallStarted,
    TurnPlace,
    UnknownEvent,
    UserMessage,
    check_loggable,
    read_event,
    read_signal,
)

EXAMPLES = 50 if settings().max_examples <= 150 else settings().max_examples
METER = "inputTokens outputTokens cacheReadTokens cacheWriteTokens costMicros"
LEASE = "fence runner over leaseUs"
PLACE = f"turnId stageId seqWithinTurn parentTurnId subagentDepth {LEASE}"
WIRE = {
    "user.message": "messageId text mode attachments metadata",
    "agent.message": f"{PLACE} messageId requestId text reasoning toolCalls metadata",
    "message.metadata": "messageId metadata",
    "model.request.started": f"{PLACE} requestId step rung provider model messageIds",
    "model.request.completed": f"{PLACE} {METER} requestId step finishReason",
    "model.request.failed": f"{PLACE} {METER} requestId step outcome error errorType",
    "model.request.retried": f"{PLACE} {METER} requestId step reason",
    "tool.call.started": f"{PLACE} callId name input requestId step annotations",
    "tool.call.completed": f"{PLACE} callId name outcome result error errorType",
    "tool.call.pending": f"{PLACE} callId name reason expiresAt",
    "tool.call.decision": f"{PLACE} callId decision by note input",
    "session.status": f"{PLACE} status stopReason messageIds error errorType",
    "session.usage": f"{PLACE} {METER} outcome limit requests calls steps durationUs",
    "session.error": f"{PLACE} error errorType source",
    "session.metadata": "metadata",
    "session.artifact": f"{PLACE} artifactId title kind url metadata",
    "session.resumed": f"{PLACE} requestsRetried callsRerun callsInterrupted callsParked",
    "turn.lease": PLACE,
    "subagent.spawned": f"{PLACE} sessionId agent task callId",
    "subagent.status": f"{PLACE} sessionId status stopReason",
    "subagent.message": f"{PLACE} sessionId messageId text",
    "subagent.completed": f"{PLACE} {METER} sessionId stopReason result",
    "connection.authorization_required": f"{PLACE} connectionId url scopes",
    "connection.authorized": f"{PLACE} connectionId",
    "sandbox.attached": f"{PLACE} sandboxId",
    "sandbox.released": f"{PLACE} sandboxId",
    "sandbox.idle": f"{PLACE} sandboxId",
    "sandbox.snapshotted": f"{PLACE} sandboxId snapshotId",
    "sandbox.resumed": f"{PLACE} sandboxId snapshotId",
    "compaction": f"{PLACE} summary throughSeq",
    "cache.prefix": f"{PLACE} prefixId throughSeq tokens",
    "hook.dead_letter": f"{PLACE} hook error attempts",
}


def test_R3_5_the_types_and_their_fields_are_those_of_the_log() -> None:
    """A name changed here is a log that old readers cannot read."""
    fields = {
        type_: {field.alias or name for name, field in cls.model_fields.items()}
        for type_, cls in EVENT_TYPES.items()
    }
    assert fields == {type_: set(names.split()) for type_, names in WIRE.items()}


def test_R3_3_the_signals_are_the_three_of_the_source() -> None:
    assert sorted(EPHEMERAL_KINDS) == [
        "agent.reasoning_delta",
        "agent.text_delta",
        "tool.call.input_delta",
    ]


def test_R3_4_the_stop_reasons_are_the_nine_of_the_source() -> None:
    assert [reason.value for reason in StopReason] == (
        "completed interrupted max_turns budget_reached error requires_action decision_expired"
        " server_restart orphaned"
    ).split()


@settings(max_examples=EXAMPLES)
@given(EVERY_EVENT)
def test_what_the_log_holds_comes_back_whole(stored: tuple[str, dict[str, Any]]) -> None:
    type_, payload = stored
    event = read_event(type_, payload)
    assert isinstance(event, EVENT_TYPES[type_])
    again = check_fields(event.payload())
    assert {name: again[name] for name in payload} == payload
    assert canonical({n: again[n] for n in payload}) == canonical(payload)
    # What was left out is a default; written out, it reads as the same event.
    assert read_event(type_, again) == event


@settings(max_examples=EXAMPLES)
@given(TEXT.filter(lambda name: name not in EVENT_TYPES), FIELDS)
def test_R3_5_a_type_that_nobody_knows_is_kept_as_it_is(
    type_: str, payload: dict[str, Any]
) -> None:
    event = read_event(type_, payload)
    assert event == UnknownEvent(type_, payload)
    assert event.payload() == payload


@settings(max_examples=EXAMPLES)
@given(EVERY_EVENT, st.data())
def test_any_payload_of_a_known_type_can_be_read(
    stored: tuple[str, dict[str, Any]], data: st.DataObject
) -> None:
    type_, payload = stored
    broken = payload | data.draw(st.dictionaries(st.sampled_from(sorted(payload)), FIELDS))
    event = read_event(type_, broken)
    assert event.payload().items() >= broken.items()


def test_a_payload_that_does_not_fit_says_where() -> None:
    event = read_event("tool.call.started", {"turnId": "t", "callId": 7, "name": "find"})
    assert event == UnknownEvent(
        "tool.call.started",
        {"turnId": "t", "callId": 7, "name": "find"},
        "callId: Input should be a valid string",
    )


def test_nothing_is_coerced() -> None:
    with pytest.raises(ValidationError):
        ModelRequestCompleted(turn_id="t", request_id="r", input_tokens=True)
    with pytest.raises(ValidationError):
        ModelRequestCompleted(turn_id="t", request_id="r", cost_micros=1.0)  # type: ignore[arg-type]


def test_a_field_by_its_python_name_is_another_field_on_the_wire() -> None:
    event = read_event("user.message", {"messageId": "m", "message_id": "x"})
    assert isinstance(event, UserMessage)
    assert (event.message_id, event.payload()["message_id"]) == ("m", "x")


def test_a_word_of_a_later_version_is_read_as_text() -> None:
    event = read_event("session.status", {"status": "idle", "stopReason": "tired"})
    assert isinstance(event, SessionStatusChanged)
    assert (event.status, event.stop_reason) == (RunStatus.IDLE, "tired")
    sent = read_event("user.message", {"messageId": "m", "mode": "steer"})
    assert isinstance(sent, UserMessage) and sent.mode is DeliveryMode.STEER


def test_null_inside_a_value_stays_and_an_absent_field_is_left_out() -> None:
    event = ToolCallStarted(turn_id="t", call_id="c", name="find", input={"near": None})
    assert event.payload() == {
        "turnId": "t",
        "callId": "c",
        "name": "find",
        "input": {"near": None},
        "step": 1,
        "annotations": {"readOnlyHint": False, "idempotentHint": False},
    }


def test_an_event_is_put_at_its_place_in_a_turn() -> None:
    event = ToolCallCompleted(turn_id="?", call_id="c", name="find")
    place = TurnPlace("t2", "step-1", 7, "t1", 1)
    assert place.put(event).payload() == {
        "turnId": "t2",
        "stageId": "step-1",
        "seqWithinTurn": 7,
        "parentTurnId": "t1",
        "subagentDepth": 1,
        "callId": "c",
        "name": "find",
        "outcome": "ok",
    }


def test_a_log_gets_no_signal_and_nothing_that_does_not_fit() -> None:
    delta = AgentTextDelta(turn_id="t", request_id="r", text="Hel")
    with pytest.raises(InvalidValue, match="live only"):
        check_loggable(delta.kind, delta.payload())
    with pytest.raises(InvalidValue, match="callId: Field required"):
        check_loggable("tool.call.completed", {"turnId": "t", "name": "find"})
    check_loggable("my.own", {"any": "thing"})


def test_a_signal_is_read_or_passed_over() -> None:
    delta = AgentTextDelta(turn_id="t", request_id="r", index=2, text="lo")
    assert read_signal(delta.kind, delta.payload()) == delta
    assert read_signal("agent.smile", {}) is None
    assert read_signal(delta.kind, {"text": "lo"}) is None
