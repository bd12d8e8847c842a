"""What runs a turn, as the host puts it together: who answers, with which tools, within what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from syncline.sync.sessions import Call, Limits, Meter, StopReason

from ._responder import ModelRequest, Responder
from ._tools import ToolRegistry


@dataclass(frozen=True, slots=True)
class TurnResult:
    """How a turn came to rest here. ``text`` is what the agent said last.

    ``error`` says why when ``stop_reason`` is error.
    """

    session_id: str
    turn_id: str
    stop_reason: StopReason
    text: str
    meter: Meter
    error: str | None = None


class TurnHooks(Protocol):
    """What a host may do around a turn. Any of them may be left out of ``Agent.hooks``.

    One that raises ends the turn with ``error``, as the turn cannot go on as it was meant to.
    """

    async def before_turn(self, session_id: str, turn_id: str) -> None:
        """A turn was begun, or gone on with, and nothing has run yet."""

    async def before_request(self, request: ModelRequest) -> ModelRequest:
        """The request as it is to be issued."""

    async def before_tool(self, session_id: str, call: Call) -> None:
        """A tool is about to run."""


class NoHooks:
    """Passes everything through; a host's own may build on it."""

    async def before_turn(self, session_id: str, turn_id: str) -> None:
        """Nothing."""

    async def before_request(self, request: ModelRequest) -> ModelRequest:
        """As it is."""
        return request

    async def before_tool(self, session_id: str, call: Call) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class Agent:
    """Who answers.

    ``respond`` is one responder, or several: when one fails, the next is asked (and the log says
    so), and when all have failed the turn ends with ``error``.
    """

    name: str
    respond: Responder | Sequence[Responder]
    tools: ToolRegistry = field(default_factory=ToolRegistry)
    limits: Limits = field(default_factory=Limits)
    instructions: str = ""
    model: str | None = None
    provider: str | None = None
    hooks: TurnHooks = field(default_factory=NoHooks)

    @property
    def rungs(self) -> tuple[Responder, ...]:
        """The responders in the order in which they are asked."""
        return tuple(self.respond) if isinstance(self.respond, Sequence) else (self.respond,)


Signaller = Callable[[str, str, bytes], None]
"""Sends something ephemeral: session id, kind, payload. ``Connection.signal`` is one."""
