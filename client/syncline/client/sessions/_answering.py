"""What the log says of an answer: the message, what it cost, and every call before any runs.

One op: a crash leaves the request open and nothing said, or the answer with all that it asks for.
"""

from __future__ import annotations

from syncline.sync.sessions import (
    AgentMessage,
    Ask,
    ModelRequestCompleted,
    Placed,
    ToolAnnotations,
    ToolCall,
    ToolCallPending,
    ToolCallStarted,
    Turn,
)

from ._responder import Answer
from ._tools import Subagent, ToolRegistry


def answered(
    turn: Turn, ask: Ask, answer: Answer, tools: ToolRegistry, message_id: str, now: int
) -> list[Placed]:
    """The events of a finished model request, in the order of the log."""
    calls = [
        ToolCall(call_id=f"{ask.request_id}-{index}", name=asked.name, input=dict(asked.input))
        for index, asked in enumerate(answer.asked)
    ]
    events: list[Placed] = [
        AgentMessage(
            turn_id=turn.id,
            message_id=message_id,
            request_id=ask.request_id,
            tool_calls=calls,
            **answer.fields(),
        ),
        ModelRequestCompleted(
            turn_id=turn.id,
            request_id=ask.request_id,
            step=ask.step,
            finish_reason=answer.finish_reason,
            **answer.meter.amounts(),
        ),
    ]
    events += [_started(turn, ask, call, tools) for call in calls]
    return events + [_pending(turn, call, tools, now) for call in calls if _parks(call, tools)]


def _started(turn: Turn, ask: Ask, call: ToolCall, tools: ToolRegistry) -> ToolCallStarted:
    tool = tools.get(call.name)
    return ToolCallStarted(
        turn_id=turn.id,
        call_id=call.call_id,
        name=call.name,
        input=call.input,
        request_id=ask.request_id,
        step=ask.step,
        annotations=ToolAnnotations() if tool is None else tool.annotations,
    )


def _parks(call: ToolCall, tools: ToolRegistry) -> bool:
    tool = tools.get(call.name)
    return tool is not None and tool.parks(call.input)


def _pending(turn: Turn, call: ToolCall, tools: ToolRegistry, now: int) -> ToolCallPending:
    tool = tools.get(call.name)
    lasts = None if tool is None or isinstance(tool, Subagent) else tool.approval_us
    return ToolCallPending(
        turn_id=turn.id,
        call_id=call.call_id,
        name=call.name,
        reason=f"{call.name} needs a person's word",
        expires_at=None if lasts is None else now + lasts,
    )
