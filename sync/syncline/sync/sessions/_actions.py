"""Actions: pure functions from a session to the next one.

An action reads no clock, mints no id and calls nobody; what has effects outside belongs in a hook
(see ``_hooks``) or a listener. The one exception is the loop of ``SendMessage``: it is the app's.

Write your own by giving any class an ``execute_on``:

    class Archive:
        def execute_on(self, session: AgentSession) -> AgentSession:
            return session.with_state(session.state.with_metadata("archived", True)).completed()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from .._errors import ModelLocked
from .._values import Value
from ._session import (
    AgentDefinition,
    AgentSession,
    AgentState,
    ExecutionStatus,
    Message,
    Model,
    SessionHeader,
    Task,
    TaskItem,
)


class SessionAction(Protocol):
    """Anything that makes the next session out of one."""

    def execute_on(self, session: AgentSession) -> AgentSession: ...


class AgentLoop(Protocol):
    """Runs an agent to the end of its turn and returns its state then, as ``SendMessage`` wants.

    The state comes in with execution ``in_progress``; one that comes back so is ``completed``.
    """

    def __call__(self, definition: AgentDefinition, state: AgentState, /) -> AgentState: ...


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Append a user's message; with ``loop``, run the agent on it. Any object is sent as its text.

    Without a loop the run is left pending, for whoever runs turns.
    """

    message: Message | Value
    loop: AgentLoop | None = None

    def execute_on(self, session: AgentSession) -> AgentSession:
        state = session.state.for_next_execution().with_message(_as_message(self.message))
        if self.loop is None:
            return session.with_state(state)
        running = replace(state, execution=ExecutionStatus.IN_PROGRESS)
        ended = self.loop(session.definition, running)
        if ended.execution is ExecutionStatus.IN_PROGRESS:
            ended = replace(ended, execution=ExecutionStatus.COMPLETED)
        return session.with_state(ended)


def _as_message(message: Message | Value) -> Message:
    if isinstance(message, Message):
        return message
    content = message if isinstance(message, str | list | dict) else str(message)
    return Message.user(content)


@dataclass(frozen=True, slots=True)
class SuspendSession:
    """Pause the session; it is kept."""

    def execute_on(self, session: AgentSession) -> AgentSession:
        return session.suspended()


@dataclass(frozen=True, slots=True)
class ResumeSession:
    """Make the session active again."""

    def execute_on(self, session: AgentSession) -> AgentSession:
        return session.resumed()


@dataclass(frozen=True, slots=True)
class ClearSession:
    """Forget messages and data. Metadata, task, prompt, model, id and definition stay."""

    def execute_on(self, session: AgentSession) -> AgentSession:
        cleared = replace(session.state, messages=(), data={}).for_next_execution()
        return session.with_state(cleared)


@dataclass(frozen=True, slots=True)
class ForkSession:
    """A new session with this one's definition and state; the source stays as it is.

    ``id`` is the fork's. It has version 0 and this session as its parent, and is not stored until
    ``repository.create(forked)``. Its model is not locked, unless ``model_locked`` says so.
    """

    id: str
    model_locked: bool = False

    def execute_on(self, session: AgentSession) -> AgentSession:
        source = session.header
        header = SessionHeader(self.id, source.agent, source.label, source.id)
        definition = replace(session.definition, model_locked=self.model_locked)
        return AgentSession(header, definition, session.state.for_next_execution())


@dataclass(frozen=True, slots=True)
class ChangeSystemPrompt:
    """Another system prompt, from the next run on."""

    prompt: object

    def execute_on(self, session: AgentSession) -> AgentSession:
        return session.with_state(replace(session.state, system_prompt=str(self.prompt)))


@dataclass(frozen=True, slots=True)
class ChangeModel:
    """Another model, from the next run on. Raises ModelLocked (3123) where it is locked."""

    model: Model

    def execute_on(self, session: AgentSession) -> AgentSession:
        if session.definition.model_locked:
            raise ModelLocked(f"the model of session {session.id} is locked", session=session.id)
        return session.with_state(replace(session.state, model=self.model))


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Write one key of the metadata; None takes it away."""

    key: str
    value: Value

    def execute_on(self, session: AgentSession) -> AgentSession:
        return session.with_state(session.state.with_metadata(self.key, self.value))


@dataclass(frozen=True, slots=True)
class UpdateTask:
    """Another task: a text, or a list of items."""

    task: str | Sequence[TaskItem]

    def execute_on(self, session: AgentSession) -> AgentSession:
        task: Task = self.task if isinstance(self.task, str) else tuple(self.task)
        return session.with_state(replace(session.state, task=task))
