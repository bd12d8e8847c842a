"""The folds of a log: laws for any log, and what each shows for logs written out by hand."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sync.sessions.logs import LOGS, item, log, pages, state
from tests.sync.strategies import FIELDS

from syncline.sync.sessions import (
    WAITING,
    AgentMessage,
    Compaction,
    Conversation,
    LogItem,
    MessageMetadata,
    Meter,
    ModelRequestCompleted,
    ModelRequestFailed,
    ModelRequestRetried,
    ModelRequestStarted,
    PromptAgent,
    PromptCall,
    PromptSummary,
    PromptUser,
    RunStatus,
    SessionErrorNoted,
    SessionStatusChanged,
    SpanKind,
    StopReason,
    SubagentCompleted,
    SubagentSpawned,
    ToolCall,
    ToolCallCompleted,
    ToolCallDecision,
    ToolCallPending,
    ToolCallStarted,
    Trace,
    UserMessage,
    trace_of,
)


def folded(items: list[LogItem]) -> Conversation:
    return Conversation().add_all(items)


# Laws. Logs are long to draw: few of them, or as many as a longer look asks for.

EXAMPLES = 30 if settings().max_examples <= 150 else settings().max_examples


@settings(max_examples=EXAMPLES)
@given(LOGS, st.lists(st.integers(0, 99), max_size=4))
def test_R3_1_how_a_log_is_cut_into_pages_does_not_matter(
    items: list[LogItem], cuts: list[int]
) -> None:
    paged = Conversation()
    for page in pages(items, cuts):
        paged.add_all(page)
        paged = paged.copy()
    assert state(paged) == state(folded(items))


@settings(max_examples=EXAMPLES)
@given(LOGS, st.integers(0, 99))
def test_a_copy_goes_its_own_way(items: list[LogItem], at: int) -> None:
    at %= len(items) + 1
    base = folded(items[:at])
    before = state(base)
    ahead = base.copy().add_all(items[at:])
    assert state(base) == before
    assert state(ahead) == state(folded(items))


@settings(max_examples=EXAMPLES)
@given(LOGS, st.integers(0, 99))
def test_a_trace_grows_as_its_log_does(items: list[LogItem], at: int) -> None:
    at %= len(items) + 1
    stood = Trace()
    for part in (items[:at], items[at:]):
        for one in part:
            stood.add(one)
        other = stood.copy()
        assert state(other) == state(stood)
        stood = other
    whole = Trace()
    for one in items:
        whole.add(one)
    assert state(whole) == state(stood)


@settings(max_examples=EXAMPLES)
@given(LOGS, st.lists(st.tuples(st.integers(0, 99), FIELDS), max_size=3))
def test_what_nobody_knows_is_passed_over_and_noted(
    items: list[LogItem], strangers: list[tuple[int, dict[str, Any]]]
) -> None:
    mixed = list(items)
    for at, payload in strangers:
        mixed.insert(at % (len(mixed) + 1), item(("some.day", payload), None))
    assert state(folded(mixed)) == state(folded(items))
    notes = trace_of(mixed).notes
    assert sum(note.event.type == "some.day" for note in notes) == len(strangers)


@settings(max_examples=EXAMPLES)
@given(LOGS)
def test_usage_is_the_sum_of_what_was_charged(items: list[LogItem]) -> None:
    charged = Meter()
    for one in items:
        if isinstance(one.event, ModelRequestCompleted | ModelRequestFailed | ModelRequestRetried):
            charged = charged.plus(one.event)
    usage = folded(items).usage
    assert usage.own == charged
    by_turn = Meter()
    for meter in usage.by_turn.values():
        by_turn = by_turn.plus(meter)
    assert by_turn == charged


@settings(max_examples=EXAMPLES)
@given(LOGS)
def test_every_call_in_a_prompt_has_an_answer(items: list[LogItem]) -> None:
    shown = folded(items).prompt.items()
    words = {"ok", "error", "interrupted", "denied", WAITING}
    for one in shown:
        if isinstance(one, PromptAgent):
            assert {call.outcome for call in one.calls} <= words
    assert not any(isinstance(one, PromptSummary) for one in shown[1:])


# One turn, as the source has it.


def say(id_: str, text: str = "") -> UserMessage:
    return UserMessage(message_id=id_, text=text)


def running(*message_ids: str, turn: str = "t1", **lease: Any) -> SessionStatusChanged:
    return SessionStatusChanged(
        status=RunStatus.RUNNING, turn_id=turn, message_ids=list(message_ids), **lease
    )


def idle(reason: StopReason = StopReason.COMPLETED, turn: str = "t1") -> SessionStatusChanged:
    return SessionStatusChanged(status=RunStatus.IDLE, stop_reason=reason, turn_id=turn)


def asks(id_: str, request: str, *calls: str, text: str = "") -> AgentMessage:
    return AgentMessage(
        turn_id="t1",
        message_id=id_,
        request_id=request,
        text=text,
        tool_calls=[ToolCall(call_id=c, name="find", input={"what": c}) for c in calls],
    )


TURN = log(
    say("m1", "Where is it?"),
    running("m1"),
    ModelRequestStarted(turn_id="t1", request_id="r1", step=1, model="large"),
    asks("m2", "r1", "c1", "c2", text="Let me see."),
    ModelRequestCompleted(
        turn_id="t1", request_id="r1", step=1, input_tokens=10, output_tokens=4, cost_micros=50
    ),
    ToolCallStarted(turn_id="t1", call_id="c1", name="find", input={"what": "c1"}),
    ToolCallStarted(turn_id="t1", call_id="c2", name="find", input={"what": "c2"}),
    ToolCallCompleted(turn_id="t1", call_id="c2", name="find", result="under the mat"),
    ToolCallCompleted(
        turn_id="t1", call_id="c1", name="find", outcome="error", result="locked", error="locked"
    ),
    ModelRequestStarted(turn_id="t1", request_id="r2", step=2, model="large"),
    asks("m3", "r2", text="Under the mat."),
    ModelRequestCompleted(
        turn_id="t1", request_id="r2", step=2, input_tokens=20, output_tokens=5, cost_micros=80
    ),
    idle(),
)
"""Seqs 1 to 13."""


def test_a_transcript_has_the_messages_and_what_came_of_the_calls() -> None:
    transcript = folded(TURN).transcript
    assert [(m.role, m.text, m.seq, m.call_ids) for m in transcript.messages] == [
        ("user", "Where is it?", 1, ()),
        ("agent", "Let me see.", 4, ("c1", "c2")),
        ("agent", "Under the mat.", 11, ()),
    ]
    call = transcript.call("c1")
    assert call is not None
    assert (call.state, call.outcome, call.result, call.error) == (
        "done",
        "error",
        "locked",
        "locked",
    )
    assert (call.started_at, call.ended_at) == (6_000_000, 9_000_000)


def test_a_prompt_keeps_each_call_with_its_message_and_its_answer() -> None:
    assert folded(TURN).prompt.items() == [
        PromptUser("m1", "Where is it?"),
        PromptAgent(
            "m2",
            "Let me see.",
            calls=(
                PromptCall("c1", "find", {"what": "c1"}, "error", "locked", "locked", True),
                PromptCall("c2", "find", {"what": "c2"}, "ok", "under the mat", None, True),
            ),
        ),
        PromptAgent("m3", "Under the mat."),
    ]


def test_a_trace_has_a_span_for_the_turn_and_for_all_within() -> None:
    trace = trace_of(TURN)
    assert [(s.kind, s.id, s.step, s.duration_us, s.outcome) for s in trace.spans] == [
        (SpanKind.TURN, "t1", None, 11_000_000, "completed"),
        (SpanKind.REQUEST, "r1", 1, 2_000_000, "completed"),
        (SpanKind.CALL, "c1", 1, 3_000_000, "error"),
        (SpanKind.CALL, "c2", 1, 1_000_000, "ok"),
        (SpanKind.REQUEST, "r2", 2, 2_000_000, "completed"),
    ]
    assert [s.id for s in trace.within("t1")] == ["r1", "c1", "c2", "r2"]
    span = trace.span(SpanKind.REQUEST, "r2")
    assert span is not None and span.meter == Meter(20, 5, cost_micros=80)


def test_a_session_at_rest_has_nothing_open_and_its_usage_counted() -> None:
    conversation = folded(TURN)
    assert not conversation.open_items
    assert (conversation.turns.status, conversation.turns.stop_reason) == ("idle", "completed")
    usage = conversation.usage
    assert usage.total == usage.own == Meter(30, 9, cost_micros=130)
    assert (usage.requests, usage.calls, usage.doubled) == (2, 2, Meter())


def test_what_a_crash_left_behind_is_open() -> None:
    """After the first result, with a message that came in meanwhile."""
    items = [*TURN[:8], item(say("m9", "Hurry"), 9)]
    found = folded(items).open_items
    assert (found.turn_id, found.request_id) == ("t1", None)
    assert [call.id for call in found.calls] == ["c1"]
    assert [message.message_id for message in found.queued] == ["m9"]
    before = folded(TURN[:3]).open_items
    assert (before.turn_id, before.request_id, before.calls) == ("t1", "r1", ())


def test_an_interrupted_call_stays_open_and_the_model_is_told() -> None:
    items = [*TURN[:8], item(idle(StopReason.INTERRUPTED), 9)]
    items += log(say("m4", "Never mind."), running("m4", turn="t2"), begin=10)
    conversation = folded(items)
    agent, user = conversation.prompt.items()[1:]
    assert isinstance(agent, PromptAgent)
    assert [(c.outcome, c.answered) for c in agent.calls] == [("interrupted", False), ("ok", True)]
    assert user == PromptUser("m4", "Never mind.")
    call = conversation.transcript.call("c1")
    assert call is not None and call.state == "open"


def test_a_queued_message_is_no_part_of_the_prompt_until_it_is_taken_in() -> None:
    items = [*TURN[:9], item(say("m5", "By the way"), 10)]
    assert PromptUser("m5", "By the way") not in folded(items).prompt.items()
    steered = ModelRequestStarted(turn_id="t1", request_id="r2", step=2, message_ids=["m5"])
    items.append(item(steered, 11))
    assert folded(items).prompt.items()[-1] == PromptUser("m5", "By the way")
    assert [m.id for m in folded(items).transcript.messages] == ["m1", "m2", "m5"]


def test_the_answer_to_a_request_that_was_issued_again_replaces_the_first() -> None:
    items = TURN[:4] + log(
        ModelRequestRetried(turn_id="t1", request_id="r1", cost_micros=40),
        asks("m7", "r1", text="Once more."),
        ModelRequestCompleted(turn_id="t1", request_id="r1", cost_micros=60),
        begin=5,
    )
    conversation = folded(items)
    assert [m.text for m in conversation.transcript.messages] == ["Where is it?", "Once more."]
    assert conversation.prompt.items()[1:] == [PromptAgent("m7", "Once more.")]
    assert (conversation.usage.own.cost_micros, conversation.usage.doubled.cost_micros) == (100, 40)
    span = trace_of(items).span(SpanKind.REQUEST, "r1")
    assert span is not None and (span.attempts, span.meter.cost_micros) == (2, 100)


def test_a_call_that_waits_for_a_person_is_parked_until_they_decide() -> None:
    items = [*TURN[:7], item(ToolCallPending(turn_id="t1", call_id="c1", reason="costly"), 8)]
    parked = folded(items)
    assert [call.id for call in parked.open_items.parked] == ["c1"]
    (agent,) = parked.prompt.items()[1:]
    assert isinstance(agent, PromptAgent)
    assert [c.outcome for c in agent.calls] == [WAITING, "interrupted"]

    allowed = ToolCallDecision(
        turn_id="t1", call_id="c1", decision="approved", input={"what": "less"}
    )
    decided = folded([*items, item(allowed, 9)])
    assert [call.id for call in decided.open_items.calls] == ["c1", "c2"]
    call = decided.transcript.call("c1")
    assert call is not None and (call.state, call.input) == ("open", {"what": "less"})

    refused = ToolCallDecision(turn_id="t1", call_id="c1", decision="denied", note="too dear")
    (agent,) = folded([*items, item(refused, 9)]).prompt.items()[1:]
    assert isinstance(agent, PromptAgent)
    assert (agent.calls[0].outcome, agent.calls[0].error) == ("denied", "too dear")


def test_a_summary_stands_for_what_came_in_before_it_for_the_model_only() -> None:
    compacted = Compaction(summary="It was about a key.", through_seq=10)
    items = [*TURN, *log(compacted, say("m8", "Thanks"), running("m8", turn="t2"), begin=14)]
    conversation = folded(items)
    assert conversation.prompt.items() == [
        PromptSummary("It was about a key."),
        PromptAgent("m3", "Under the mat."),
        PromptUser("m8", "Thanks"),
    ]
    assert [m.id for m in conversation.transcript.messages] == ["m1", "m2", "m3", "m8"]


def test_an_annotation_sets_keys_and_removes_those_that_are_null() -> None:
    items = log(
        UserMessage(message_id="m1", metadata={"a": 1, "b": 2}),
        MessageMetadata(message_id="m1", metadata={"b": None, "c": 3}),
        MessageMetadata(message_id="m0", metadata={"lost": True}),
    )
    message = folded(items).transcript.message("m1")
    assert message is not None and message.metadata == {"a": 1, "c": 3}


def test_what_ran_under_a_lease_of_anothers_shows_nowhere_but_in_the_costs() -> None:
    items = log(
        say("m1"),
        running("m1", fence=1, runner="x", over="", lease_us=9),
        ModelRequestStarted(turn_id="t1", request_id="r1", fence=2, runner="y", over="x"),
        AgentMessage(turn_id="t1", message_id="m2", text="stale", fence=1, runner="x"),
        ModelRequestCompleted(turn_id="t1", request_id="r1", cost_micros=7, fence=1, runner="x"),
        AgentMessage(turn_id="t1", message_id="m3", text="stands", fence=2, runner="y"),
    )
    conversation = folded(items)
    assert [m.text for m in conversation.transcript.messages] == ["", "stands"]
    assert conversation.prompt.items()[1:] == [PromptAgent("m3", "stands")]
    assert conversation.open_items.request_id == "r1"
    usage = conversation.usage
    assert (usage.own.cost_micros, usage.doubled.cost_micros) == (7, 7)


def test_a_subagent_is_counted_by_its_newest_word() -> None:
    items = log(
        running(),
        SubagentSpawned(turn_id="t1", session_id="s1", agent="scout"),
        SubagentCompleted(turn_id="t1", session_id="s1", cost_micros=5),
        SubagentCompleted(turn_id="t1", session_id="s1", cost_micros=8),
        SessionErrorNoted(turn_id="t1", error="no network"),
    )
    usage = folded(items).usage
    assert (usage.own, usage.subagents, usage.total) == (
        Meter(),
        Meter(cost_micros=8),
        Meter(cost_micros=8),
    )
    trace = trace_of(items)
    span = trace.span(SpanKind.SUBAGENT, "s1")
    assert span is not None and (span.name, span.within) == ("scout", "t1")
    assert [note.event.type for note in trace.notes] == ["session.error"]
