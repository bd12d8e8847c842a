"""A session of an agent: its header, what the agent is, and what it has done.

Immutable: whatever changes one returns a new one. ``version`` is a plain integer that the store at
hand counts up with each change, for optimistic locking; it has nothing to do with the version
vectors of replicas and is never compared with one.

``SessionStatus`` is about the conversation and changes only when an action says so;
``ExecutionStatus`` is about one run of the agent. The two are independent.

Metadata, data and message contents are values as records hold them (see ``syncline.sync``). They
are copied on the way in and out of ``to_dict``; lists and maps inside them must not be edited in
place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from .._errors import InvalidValue
from .._names import NAME_BYTES_MAX, check_id, check_name
from .._values import Value, check_value, copy_fields

METADATA_KEY_BYTES_MAX = NAME_BYTES_MAX - len("metadata.")
"""Replicas keep each key as a field of its own, ``metadata.<key>``."""

Model = str | dict[str, Value]
"""A model as the app names it: text, or a map of settings."""


class SessionStatus(StrEnum):
    """How a conversation stands."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    DELETED = "deleted"


class ExecutionStatus(StrEnum):
    """How one run of the agent stands, or how the last one ended."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"


class TaskStatus(StrEnum):
    """How one item of a task list stands."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class TaskItem:
    """One item of a task list."""

    content: str
    status: TaskStatus = TaskStatus.PENDING

    def __post_init__(self) -> None:
        _check_text(self.content, "a task's content")


Task = str | tuple[TaskItem, ...]
"""What the agent works on: a text, or a list of items. An empty text is no task."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ``content`` is text, or whatever value the app's model understands.

    ``id`` is empty until the runtime or a store gives one; replicas merge lists of messages by it.
    """

    role: str
    content: Value
    id: str = ""
    metadata: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.role, "a message's role")
        check_value(self.content, "content")
        object.__setattr__(self, "content", _copied(self.content))
        if self.id:
            check_name(self.id, "a message's id", own=True)
        object.__setattr__(self, "metadata", _frozen(self.metadata, "a message's metadata"))

    @staticmethod
    def user(content: Value, *, id: str = "") -> Message:
        return Message("user", content, id)

    @staticmethod
    def assistant(content: Value, *, id: str = "") -> Message:
        return Message("assistant", content, id)

    def to_dict(self) -> dict[str, Value]:
        return {
            "id": self.id,
            "role": self.role,
            "content": _copied(self.content),
            "metadata": copy_fields(self.metadata),
        }

    @staticmethod
    def from_dict(row: Mapping[str, Value]) -> Message:
        return Message(row["role"], row["content"], row["id"], row["metadata"])


@dataclass(frozen=True, slots=True)
class AgentDefinition:
    """What an agent is; fixed for the life of a session.

    ``tools`` names what it may use. With ``model_locked`` (the default) the session keeps its
    model; only a fork may take another.
    """

    name: str
    label: str = ""
    description: str = ""
    system_prompt: str = ""
    model: Model | None = None
    tools: tuple[str, ...] = ()
    model_locked: bool = True

    def __post_init__(self) -> None:
        for what in ("name", "label", "description", "system_prompt"):
            _check_text(getattr(self, what), f"an agent's {what}")
        object.__setattr__(self, "model", _checked_model(self.model))
        object.__setattr__(self, "tools", tuple(self.tools))
        for tool in self.tools:
            _check_text(tool, "the name of a tool")

    def to_dict(self) -> dict[str, Value]:
        return {
            "name": self.name,
            "label": self.label,
            "description": self.description,
            "system_prompt": self.system_prompt,
            "model": _checked_model(self.model),
            "tools": list(self.tools),
            "model_locked": self.model_locked,
        }

    @staticmethod
    def from_dict(row: Mapping[str, Value]) -> AgentDefinition:
        return AgentDefinition(
            row["name"],
            row["label"],
            row["description"],
            row["system_prompt"],
            row["model"],
            tuple(row["tools"]),
            bool(row["model_locked"]),
        )


@dataclass(frozen=True, slots=True)
class AgentState:
    """What an agent has done and works with.

    ``system_prompt`` and ``model`` stand in for the definition's when they are not None. ``data``
    is for whatever else the agent keeps (artifacts, jobs, calls that wait): a reset clears it.
    A key of ``metadata`` or ``data`` whose value is None is not there.
    """

    messages: tuple[Message, ...] = ()
    metadata: Mapping[str, Value] = field(default_factory=dict)
    task: Task = ""
    system_prompt: str | None = None
    model: Model | None = None
    execution: ExecutionStatus = ExecutionStatus.PENDING
    data: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", tuple(self.messages))
        object.__setattr__(self, "metadata", _present(self.metadata, "metadata"))
        object.__setattr__(self, "data", _present(self.data, "data"))
        object.__setattr__(self, "task", _checked_task(self.task))
        object.__setattr__(self, "model", _checked_model(self.model))
        object.__setattr__(self, "execution", ExecutionStatus(self.execution))
        if self.system_prompt is not None:
            _check_text(self.system_prompt, "a system prompt")

    def with_message(self, *messages: Message) -> AgentState:
        return replace(self, messages=(*self.messages, *messages))

    def with_metadata(self, key: str, value: Value) -> AgentState:
        """Set a key; None takes it away."""
        return replace(self, metadata={**self.metadata, key: value})

    def with_data(self, key: str, value: Value) -> AgentState:
        """Set a key; None takes it away."""
        return replace(self, data={**self.data, key: value})

    def for_next_execution(self) -> AgentState:
        """The same state, ready for a run of its own."""
        return replace(self, execution=ExecutionStatus.PENDING)

    def with_message_ids(self, new_id: Callable[[], str]) -> AgentState:
        """Give an id to each message that has none."""
        if all(message.id for message in self.messages):
            return self
        named = (m if m.id else replace(m, id=new_id()) for m in self.messages)
        return replace(self, messages=tuple(named))

    def to_dict(self) -> dict[str, Value]:
        return {
            "messages": [message.to_dict() for message in self.messages],
            "metadata": copy_fields(self.metadata),
            "task": task_to_value(self.task),
            "system_prompt": self.system_prompt,
            "model": _checked_model(self.model),
            "execution": self.execution.value,
            "data": copy_fields(self.data),
        }

    @staticmethod
    def from_dict(row: Mapping[str, Value]) -> AgentState:
        return AgentState(
            tuple(Message.from_dict(message) for message in row["messages"]),
            row["metadata"],
            task_from_value(row["task"]),
            row["system_prompt"],
            row["model"],
            ExecutionStatus(row["execution"]),
            row["data"],
        )


@dataclass(frozen=True, slots=True)
class SessionHeader:
    """What a list of sessions shows. Times are microseconds since the Unix epoch, 0 for not yet.

    ``agent`` and ``label`` are the agent's name and label. ``version`` is 0 until the session is
    stored. The store stamps ``updated_at``, and ``created_at`` where it is 0.
    """

    id: str
    agent: str
    label: str = ""
    parent_id: str | None = None
    status: SessionStatus = SessionStatus.ACTIVE
    version: int = 0
    created_at: int = 0
    updated_at: int = 0

    def __post_init__(self) -> None:
        check_id(self.id, "session id")
        if self.parent_id is not None:
            check_id(self.parent_id, "parent session id")
        object.__setattr__(self, "status", SessionStatus(self.status))

    def to_dict(self) -> dict[str, Value]:
        return {
            "id": self.id,
            "agent": self.agent,
            "label": self.label,
            "parent_id": self.parent_id,
            "status": self.status.value,
            "version": self.version,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
        }

    @staticmethod
    def from_dict(row: Mapping[str, Value]) -> SessionHeader:
        return SessionHeader(
            row["id"],
            row["agent"],
            row["label"],
            row["parent_id"],
            SessionStatus(row["status"]),
            row["version"],
            row["created_at"],
            row["updated_at"],
        )


@dataclass(frozen=True, slots=True)
class AgentSession:
    """A session: header, definition and state.

    ``transient`` is what a resume rebuilt from the event log. It is shown and never stored.
    """

    header: SessionHeader
    definition: AgentDefinition
    state: AgentState = field(default_factory=AgentState)
    transient: Mapping[str, Value] | None = field(default=None, compare=False)

    @staticmethod
    def fresh(
        id: str,
        definition: AgentDefinition,
        state: AgentState | None = None,
        *,
        parent_id: str | None = None,
    ) -> AgentSession:
        """A session that is not stored yet: active, version 0."""
        header = SessionHeader(id, definition.name, definition.label, parent_id)
        return AgentSession(header, definition, state or AgentState())

    @property
    def id(self) -> str:
        return self.header.id

    @property
    def parent_id(self) -> str | None:
        return self.header.parent_id

    @property
    def status(self) -> SessionStatus:
        return self.header.status

    @property
    def version(self) -> int:
        return self.header.version

    @property
    def system_prompt(self) -> str:
        """The prompt in force."""
        own = self.state.system_prompt
        return self.definition.system_prompt if own is None else own

    @property
    def model(self) -> Model | None:
        """The model in force."""
        return self.definition.model if self.state.model is None else self.state.model

    def with_state(self, state: AgentState) -> AgentSession:
        """With another state; the status stays as it is."""
        return replace(self, state=state)

    def with_status(self, status: SessionStatus) -> AgentSession:
        return replace(self, header=replace(self.header, status=status))

    def suspended(self) -> AgentSession:
        return self.with_status(SessionStatus.SUSPENDED)

    def resumed(self) -> AgentSession:
        return self.with_status(SessionStatus.ACTIVE)

    def completed(self) -> AgentSession:
        return self.with_status(SessionStatus.COMPLETED)

    def failed(self) -> AgentSession:
        return self.with_status(SessionStatus.FAILED)

    def deleted(self) -> AgentSession:
        return self.with_status(SessionStatus.DELETED)

    def stored(self, *, version: int, updated_at: int) -> AgentSession:
        """For stores: as it is stored now. What is transient is not."""
        created_at = self.header.created_at or updated_at
        header = replace(self.header, version=version, created_at=created_at, updated_at=updated_at)
        return replace(self, header=header, transient=None)

    def to_dict(self) -> dict[str, Value]:
        """Plain data for a store, sharing nothing with the session."""
        return {
            "header": self.header.to_dict(),
            "definition": self.definition.to_dict(),
            "state": self.state.to_dict(),
        }

    @staticmethod
    def from_dict(row: Mapping[str, Any]) -> AgentSession:
        """The session of ``to_dict``. Raises InvalidValue (3019) for anything else."""
        try:
            return AgentSession(
                SessionHeader.from_dict(row["header"]),
                AgentDefinition.from_dict(row["definition"]),
                AgentState.from_dict(row["state"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidValue(f"not the data of a session: {error!r}", path="") from error


def task_to_value(task: Task) -> Value:
    """A task as a value."""
    if isinstance(task, str):
        return task
    return [{"content": item.content, "status": item.status.value} for item in task]


def task_from_value(value: Value) -> Task:
    """The task of its value."""
    if isinstance(value, str):
        return value
    return tuple(TaskItem(item["content"], TaskStatus(item["status"])) for item in value)


def _checked_task(task: str | Iterable[TaskItem]) -> Task:
    if isinstance(task, str):
        _check_text(task, "a task")
        return task
    items = tuple(task)
    if not all(isinstance(item, TaskItem) for item in items):
        raise InvalidValue("a task is text or a list of TaskItem", path="task")
    return items


def _checked_model(model: Model | None) -> Model | None:
    if model is None or type(model) is str:
        check_value(model, "model")
        return model
    if type(model) is not dict:
        raise InvalidValue(f"a model is text or a dict, not {type(model).__name__}", path="model")
    check_value(model, "model")
    return copy_fields(model)


def _copied(value: Value) -> Value:
    return copy_fields({"": value})[""]


def _check_text(value: object, what: str) -> None:
    if type(value) is not str:
        raise InvalidValue(f"{what} must be text, not {type(value).__name__}", path=what)
    check_value(value, what)


def _present(values: Mapping[str, Value], what: str) -> Mapping[str, Value]:
    for key in values:
        check_name(key, f"a key of {what}", own=True, bytes_max=METADATA_KEY_BYTES_MAX)
    there = {key: value for key, value in values.items() if value is not None}
    return _frozen(there, what)


def _frozen(values: Mapping[str, Value], what: str) -> Mapping[str, Value]:
    if not isinstance(values, Mapping):
        raise InvalidValue(f"{what} must be a map, not {type(values).__name__}", path=what)
    taken = dict(values)
    check_value(taken, what)
    return MappingProxyType(copy_fields(taken))
