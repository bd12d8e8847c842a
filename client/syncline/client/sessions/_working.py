"""Running one tool call: whatever it does, its end is something that log and model can read.

A tool that raises, input that does not fit and a name that nobody has are answers to the model, and
no failure of the turn's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from syncline.sync import Value
from syncline.sync.sessions import Call, Placed, ToolCallCompleted, ToolOutcome

from ._tools import BadCall, Tool, ToolContext
from ._turn_log import Fenced


@dataclass(frozen=True, slots=True)
class Worked:
    """How a call ended."""

    outcome: ToolOutcome = ToolOutcome.OK
    result: Value = None
    error: str | None = None
    error_type: str | None = None

    @staticmethod
    def failed(error: Exception) -> Worked:
        """It raised."""
        said = str(error) or repr(error)
        return Worked(ToolOutcome.ERROR, None, said, type(error).__name__)

    def event(self, turn_id: str, call: Call) -> ToolCallCompleted:
        """What the log says of it."""
        return ToolCallCompleted(
            turn_id=turn_id,
            call_id=call.id,
            name=call.name,
            outcome=self.outcome,
            result=self.result,
            error=self.error,
            error_type=self.error_type,
        )


async def run_tool(
    tool: Tool | None,
    call: Call,
    session_id: str,
    turn_id: str,
    record: Callable[[Placed], Awaitable[None]],
) -> Worked:
    """Run it to its end. Raises Fenced when the turn was cut meanwhile, and no more."""
    if tool is None:
        return Worked.failed(BadCall(f"there is no tool {call.name!r}"))
    try:
        context = ToolContext(session_id, turn_id, call.id, record)
        return Worked(result=await tool.call(call.input, context))
    except Fenced:
        raise
    except Exception as error:
        return Worked.failed(error)
