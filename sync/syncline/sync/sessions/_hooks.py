"""Hooks: what the app puts in the way of a session at six stages of the runtime.

What a hook returns goes on. What is changed before the save is stored; what is changed after it
shows on the returned session only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ._session import AgentSession


class Stage(StrEnum):
    """Where hooks are asked, in the order of a create and then of an execute."""

    BEFORE_CREATE = "before_create"
    AFTER_CREATE = "after_create"
    AFTER_LOAD = "after_load"
    AFTER_ACTION = "after_action"
    BEFORE_SAVE = "before_save"
    AFTER_SAVE = "after_save"


class SessionController(Protocol):
    """A hook, or a stack of them."""

    def on_stage(self, stage: Stage, session: AgentSession) -> AgentSession: ...


class PassThrough:
    """No hooks: every session goes on as it is."""

    def on_stage(self, stage: Stage, session: AgentSession) -> AgentSession:
        return session


@dataclass(frozen=True, slots=True)
class RegisteredHook:
    """A hook at its place in a stack."""

    controller: SessionController
    priority: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class SessionHookStack:
    """Hooks in order: a higher priority first, ties as they were added. Immutable."""

    hooks: tuple[RegisteredHook, ...] = ()

    def adding(
        self, controller: SessionController, *, priority: int = 0, name: str = ""
    ) -> SessionHookStack:
        """A new stack with this hook as well."""
        added = (*self.hooks, RegisteredHook(controller, priority, name))
        return SessionHookStack(tuple(sorted(added, key=lambda hook: -hook.priority)))

    def on_stage(self, stage: Stage, session: AgentSession) -> AgentSession:
        for hook in self.hooks:
            session = hook.controller.on_stage(stage, session)
        return session
