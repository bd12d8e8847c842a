"""Subagents: a tool call that is a session of its own, with one turn.

The child's id is in the parent's log before the child exists, so a crash at any point finds the one
child again and goes on with it. The child's log is its own; the parent's hears of four things only,
counted rather than remembered, so that each is told once. Whoever runs the parent's turn rules its
children: it takes them over without waiting for a lease to run out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from syncline.sync import HEADER_COLLECTION, HEADER_ID
from syncline.sync.sessions import (
    Call,
    Placed,
    StopReason,
    SubagentSpawned,
    ToolOutcome,
    Turn,
    TurnState,
    UserMessage,
    finished,
    reports,
)

from .._core import Core
from ._agent import Agent, TurnResult
from ._driver import Driver, in_thread
from ._tools import BadCall, Subagent
from ._turn_log import Fenced, TurnLog
from ._working import Worked

AfterAppend = Callable[[TurnState], Awaitable[None]]
Attend = Callable[[str, Agent, AfterAppend], Awaitable[TurnResult | None]]
"""Run a child's turn to its end: session id, agent, what to call after each append."""


async def run_child(attend: Attend, parent: Driver, call: Call, tool: Subagent) -> None:
    """Run one call of a subagent, and complete it in the parent's log."""
    turn = (await parent.look()).running
    if turn is None:
        raise Fenced
    depth = turn.depth + 1
    try:
        task = tool.task(call.input)
        if depth > parent.agent.limits.depth_max:
            raise BadCall(f"subagents may be {parent.agent.limits.depth_max} deep, and no deeper")
    except BadCall as error:
        await parent.complete(call, Worked.failed(error))
        return
    child_id = await _child_of(parent, turn, call, tool, task)
    parent.children.add(child_id)
    await in_thread(_create, parent, child_id, turn, depth, call, tool, task)

    async def tell(child: TurnState) -> None:
        # A parent that was cut is told nothing more; its supervisor stops this worker.
        with contextlib.suppress(Fenced):
            await parent.append(lambda state: _news(state, child, child_id), "tools")

    result = await attend(child_id, tool.agent, tell)
    child = await in_thread(TurnLog(parent.bench.core, child_id).refresh)
    await parent.complete(call, _worked(result, child), before=lambda s: _last(s, child, child_id))


async def _child_of(parent: Driver, turn: Turn, call: Call, tool: Subagent, task: str) -> str:
    for child in turn.children.values():
        if child.call_id == call.id:
            return child.session_id
    child_id = parent.bench.new_id()
    spawned = SubagentSpawned(
        turn_id=turn.id, session_id=child_id, agent=tool.agent.name, task=task, call_id=call.id
    )
    await parent.append(lambda state: [spawned], "tools")
    return child_id


def _create(
    parent: Driver, child_id: str, turn: Turn, depth: int, call: Call, tool: Subagent, task: str
) -> None:
    """The child and its one message, in one op; nothing when it is there already."""
    core = parent.bench.core
    with core.batch():
        core.ensure_session(child_id)
        if TurnLog(core, child_id).refresh().knows(call.id):
            return
        header: dict[str, Any] = {
            "label": tool.name,
            "status": "active",
            "created_at": core.now,
            "parent": parent.log.session_id,
            "agent": tool.agent.name,
            "subagent": {"turn": turn.id, "depth": depth, "call": call.id},
        }
        message = UserMessage(message_id=call.id, text=task)
        with core.op(child_id) as op:
            op.patch(HEADER_COLLECTION, HEADER_ID, header, None)
            op.append(message.type, message.payload(), None)


def _news(state: TurnState, child: TurnState, child_id: str) -> Sequence[Placed]:
    turn = state.running
    return [] if turn is None else reports(turn, child, child_id)


def _last(state: TurnState, child: TurnState, child_id: str) -> Sequence[Placed]:
    turn = state.running
    if turn is None or child.turn is None:
        return []
    return [*reports(turn, child, child_id), finished(turn, child, child_id)]


def _worked(result: TurnResult | None, child: TurnState) -> Worked:
    """The child's answer is the call's result; a child that did not finish is a failed call."""
    reason = child.stop_reason if result is None else str(result.stop_reason)
    said = "" if child.turn is None else child.turn.said
    if reason == StopReason.COMPLETED:
        return Worked(result=said)
    return Worked(ToolOutcome.ERROR, said or None, f"the subagent ended: {reason}", "Subagent")


def ancestry(core: Core, session_id: str) -> tuple[str | None, int]:
    """The parent's turn and the depth of a session, (None, 0) of one that is no subagent."""
    record = core.visible(session_id, HEADER_COLLECTION, HEADER_ID)
    origin = None if record is None else record.fields.get("subagent")
    if not isinstance(origin, dict):
        return None, 0
    turn, depth = origin.get("turn"), origin.get("depth")
    return (turn if isinstance(turn, str) else None), (depth if type(depth) is int else 1)
