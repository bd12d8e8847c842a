"""Turns in virtual time: a clock that a test moves, an agent by script, a log that reads well."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from syncline.client import Replica, Session
from syncline.client.sessions import (
    Agent,
    Asked,
    Consumed,
    Limits,
    Meter,
    ModelRequest,
    ScriptedResponder,
    TextDelta,
    ToolRegistry,
    TurnRunner,
)
from syncline.sync.sessions import PromptAgent

NOW = 1_700_000_000_000_000
SECOND = 1_000_000
QUIET = ("model.request.started", "model.request.completed")


class Clock:
    """The time of a test, and how a runner waits in it."""

    def __init__(self, now: int = NOW) -> None:
        self.now = now
        self._timers: dict[asyncio.Event, int] = {}

    def __call__(self) -> int:
        return self.now

    def advance(self, us: int) -> None:
        """Let this much time go by; whoever waited for less wakes up."""
        self.now += us
        for timer, at in self._timers.items():
            if at <= self.now:
                timer.set()

    async def wait(self, event: asyncio.Event, us: int | None) -> None:
        timer = asyncio.Event()
        if us is not None:
            self._timers[timer] = self.now + us
            if us <= 0:
                timer.set()
        tasks = [asyncio.ensure_future(e.wait()) for e in (event, timer)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._timers.pop(timer, None)
            for task in tasks:
                task.cancel()


class Text(BaseModel):
    """What the tools of these tests take."""

    text: str = ""


def call(name: str, text: str = "") -> Asked:
    return Asked(name, {"text": text})


def says(text: str, *calls: Asked, tokens: int = 1) -> list[Any]:
    """An answer: a text, the calls it asks for, and what it took."""
    return [TextDelta(text), *calls, Consumed(Meter(tokens, tokens, cost_micros=tokens * 10))]


def said(request: ModelRequest) -> list[str]:
    """What the agent has said so far, as the model is shown it."""
    return [item.text for item in request.prompt if isinstance(item, PromptAgent)]


class Stage:
    """A replica, its clock, and runners on it."""

    def __init__(self, folder: Path, clock: Clock | None = None, name: str = "device") -> None:
        self.clock = clock or Clock()
        self.replica = Replica(
            folder / f"{name}.db", client_id=name, clock=self.clock, durability="normal"
        )
        self.ids = itertools.count(1)

    def session(self) -> Session:
        return self.replica.create_session("turns")

    def runner(self, agent: Agent | Callable[[str], Agent], **options: Any) -> TurnRunner:
        options.setdefault("online", lambda: False)
        return TurnRunner(self.replica, agent, timing=self.clock, **options)


def agent(
    script: Sequence[Any] | Callable[[ModelRequest], Any],
    tools: ToolRegistry | None = None,
    limits: Limits | None = None,
    **more: Any,
) -> Agent:
    responder = script if isinstance(script, ScriptedResponder) else ScriptedResponder(script)
    return Agent("agent", responder, tools or ToolRegistry(), limits or Limits(), **more)


def log(session: Session) -> list[str]:
    """The events of a session, one short line each."""
    return [line(event.type, event.payload) for event in session.events()]


def line(type_: str, payload: dict[str, Any]) -> str:
    parts = [type_]
    for name in ("status", "stopReason", "name", "decision", "outcome", "result", "text"):
        if name in payload and not (type_ == "session.usage" and name == "outcome"):
            parts.append(str(payload[name]))
    return " ".join(parts)


def types(session: Session) -> list[str]:
    return [event.type for event in session.events()]


def last(session: Session, type_: str) -> dict[str, Any]:
    return [event.payload for event in session.events() if event.type == type_][-1]
