"""Logs for the folds: written out by hand, or generated with few ids so that events meet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from syncline.sync.sessions import (
    AgentMessage,
    Compaction,
    KnownEvent,
    LogItem,
    MessageMetadata,
    ModelRequestCompleted,
    ModelRequestFailed,
    ModelRequestRetried,
    ModelRequestStarted,
    SessionErrorNoted,
    SessionStatusChanged,
    SubagentCompleted,
    SubagentSpawned,
    ToolCall,
    ToolCallCompleted,
    ToolCallDecision,
    ToolCallPending,
    ToolCallStarted,
    UserMessage,
)


def item(
    event: KnownEvent | tuple[str, dict[str, Any]], seq: int | None, *, at: int | None = None
) -> LogItem:
    """This event alone in the op at ``seq``, written at ``at`` (default: a second per seq)."""
    type_, payload = event if isinstance(event, tuple) else (event.type, event.payload())
    when = 1_000_000 * (seq or 0) if at is None else at
    return LogItem.read(seq, 0, type_, payload, when, "ann", f"{seq:032x}" if seq else "f" * 32)


def log(*events: KnownEvent | tuple[str, dict[str, Any]], begin: int = 1) -> list[LogItem]:
    """These events, one per op, from seq ``begin`` on."""
    return [item(event, seq) for seq, event in enumerate(events, begin)]


TURNS = st.sampled_from(["t1", "t2"])
MESSAGES = st.sampled_from(["m1", "m2", "m3", "m4"])
REQUESTS = st.sampled_from(["r1", "r2", "r3"])
CALLS = st.sampled_from(["c1", "c2", "c3"])
AMOUNTS = st.integers(0, 9)
METADATA = st.dictionaries(st.sampled_from("ab"), st.none() | st.integers(0, 3), max_size=2)
RUNNERS = st.sampled_from(["x", "y"])


def _leases() -> st.SearchStrategy[dict[str, Any]]:
    """Mostly no lease; else one of two runners, who claim from each other or go on."""
    held = st.fixed_dictionaries(
        {"fence": st.integers(1, 3), "runner": RUNNERS, "over": st.sampled_from(["", "x", "y"])}
    )
    return st.just({}) | held


@st.composite
def _placed(draw: st.DrawFn, /, cls: type[Any], **fields: st.SearchStrategy[Any]) -> Any:
    made = {name: draw(strategy) for name, strategy in fields.items()}
    return cls(turn_id=draw(TURNS), **made, **draw(_leases()))


EVENTS: st.SearchStrategy[KnownEvent | tuple[str, dict[str, Any]]] = st.one_of(
    st.builds(UserMessage, message_id=MESSAGES, text=st.sampled_from(["hi", "ho"])),
    _placed(
        SessionStatusChanged,
        status=st.just("running"),
        message_ids=st.lists(MESSAGES, max_size=2),
    ),
    _placed(
        SessionStatusChanged,
        status=st.just("idle"),
        stop_reason=st.sampled_from(["completed", "interrupted", "requires_action"]),
    ),
    _placed(
        ModelRequestStarted,
        request_id=REQUESTS,
        step=st.integers(1, 3),
        message_ids=st.lists(MESSAGES, max_size=1),
    ),
    _placed(ModelRequestRetried, request_id=REQUESTS, cost_micros=AMOUNTS),
    _placed(ModelRequestFailed, request_id=REQUESTS, input_tokens=AMOUNTS),
    _placed(ModelRequestCompleted, request_id=REQUESTS, output_tokens=AMOUNTS),
    _placed(
        AgentMessage,
        message_id=MESSAGES,
        request_id=st.none() | REQUESTS,
        tool_calls=st.lists(st.builds(ToolCall, call_id=CALLS, name=st.just("find")), max_size=2),
    ),
    _placed(ToolCallStarted, call_id=CALLS, name=st.just("find")),
    _placed(
        ToolCallCompleted,
        call_id=CALLS,
        name=st.just("find"),
        outcome=st.sampled_from(["ok", "error", "interrupted"]),
        result=AMOUNTS,
    ),
    _placed(ToolCallPending, call_id=CALLS),
    _placed(ToolCallDecision, call_id=CALLS, decision=st.sampled_from(["approved", "denied"])),
    st.builds(MessageMetadata, message_id=MESSAGES, metadata=METADATA),
    _placed(SubagentSpawned, session_id=st.sampled_from(["s1", "s2"])),
    _placed(SubagentCompleted, session_id=st.sampled_from(["s1", "s2"]), cost_micros=AMOUNTS),
    _placed(SessionErrorNoted, error=st.just("tired")),
    _placed(Compaction, summary=st.just("so far"), through_seq=st.integers(0, 30)),
)
LOGS: st.SearchStrategy[list[LogItem]] = st.lists(EVENTS, max_size=30).map(
    lambda events: log(*events)
)


def state(fold: Any) -> Any:
    """All that a fold holds, as plain data that can be compared."""
    slots = getattr(type(fold), "__slots__", None)
    if slots is not None and not isinstance(fold, str | tuple):
        return {name: state(getattr(fold, name)) for name in slots}
    if isinstance(fold, dict):
        # The order counts: it is what the readers see.
        return [(key, state(value)) for key, value in fold.items()]
    if isinstance(fold, list | tuple):
        return [state(value) for value in fold]
    return fold


def pages(items: list[LogItem], cuts: Iterable[int]) -> list[list[LogItem]]:
    """The log cut at these places."""
    places = sorted({0, *(cut % (len(items) + 1) for cut in cuts), len(items)})
    return [items[a:b] for a, b in zip(places, places[1:], strict=False)]
