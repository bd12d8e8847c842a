"""The typed events of a session's log.

An event is ``(type, payload)`` in the log; here each type is a frozen model. ``event.payload()``
makes what is stored, ``read_event`` the model of what was.

The log is for ever and has more writers than this version: a type or a field that nobody here knows
is kept as it is, and so is a known type whose payload does not fit (``UnknownEvent`` with the
problem). Reading therefore never fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field, ValidationError

from .._errors import InvalidValue
from .._values import Value
from ._payload import (
    Attachment,
    Count,
    Decision,
    DeliveryMode,
    InTurn,
    Logged,
    Metered,
    Open,
    Placed,
    RequestOutcome,
    RunStatus,
    StopReason,
    ToolAnnotations,
    ToolCall,
    ToolOutcome,
    TurnOutcome,
    fit_problem,
)
from ._signals import EPHEMERAL_KINDS

# Messages.


class UserMessage(Logged):
    """A message that was sent, stored before it is acknowledged.

    The turn that takes it in says so: see ``message_ids`` of ``SessionStatusChanged`` and
    ``ModelRequestStarted``. Until then it is queued.
    """

    type: ClassVar[str] = "user.message"
    message_id: str
    text: str = ""
    mode: Open[DeliveryMode] = DeliveryMode.QUEUE
    attachments: list[Attachment] = Field(default_factory=list)
    metadata: dict[str, Any] = Field(default_factory=dict)


class AgentMessage(InTurn):
    """What the model said: the durable one, to render and to store.

    It names the calls that the model asked for, so that a crash before they are recorded as started
    loses none. When its request is retried, the answer to that replaces it.
    """

    type: ClassVar[str] = "agent.message"
    message_id: str
    request_id: str | None = None
    text: str = ""
    reasoning: str | None = None
    tool_calls: list[ToolCall] = Field(default_factory=list)
    metadata: dict[str, Any] = Field(default_factory=dict)


class MessageMetadata(Logged):
    """An annotation of one message: these keys are set, and those that are null removed."""

    type: ClassVar[str] = "message.metadata"
    message_id: str
    metadata: dict[str, Any]


# Model requests.


class ModelRequestStarted(InTurn):
    """A call of a model begins. ``step`` counts from 1 in its turn, ``rung`` of fallback from 0.

    ``message_ids`` are the messages that this step takes in beyond those of the turn's start.
    """

    type: ClassVar[str] = "model.request.started"
    request_id: str
    step: Count = 1
    rung: Count = 0
    provider: str | None = None
    model: str | None = None
    message_ids: list[str] = Field(default_factory=list)


class ModelRequestCompleted(InTurn, Metered):
    """It answered: what it consumed."""

    type: ClassVar[str] = "model.request.completed"
    request_id: str
    step: Count = 1
    finish_reason: str | None = None


class ModelRequestFailed(InTurn, Metered):
    """It did not answer. What it consumed all the same is counted."""

    type: ClassVar[str] = "model.request.failed"
    request_id: str
    step: Count = 1
    outcome: Open[RequestOutcome] = RequestOutcome.PROVIDER_ERROR
    error: str = ""
    error_type: str | None = None


class ModelRequestRetried(InTurn, Metered):
    """It is issued again under the same id; the meter is what the lost attempt is charged for."""

    type: ClassVar[str] = "model.request.retried"
    request_id: str
    step: Count = 1
    reason: str = ""


# Tool calls.


class ToolCallStarted(InTurn):
    """A call is recorded; every call of a step is, before any of them runs."""

    type: ClassVar[str] = "tool.call.started"
    call_id: str
    name: str
    input: dict[str, Any] = Field(default_factory=dict)
    request_id: str | None = None
    step: Count = 1
    annotations: ToolAnnotations = Field(default_factory=ToolAnnotations)


class ToolCallCompleted(InTurn):
    """It ended. ``result`` is what the model is shown, also when the call failed."""

    type: ClassVar[str] = "tool.call.completed"
    call_id: str
    name: str
    outcome: Open[ToolOutcome] = ToolOutcome.OK
    result: Any = None
    error: str | None = None
    error_type: str | None = None


class ToolCallPending(InTurn):
    """It waits for a person: parked, not in flight. ``expires_at`` is None for no limit."""

    type: ClassVar[str] = "tool.call.pending"
    call_id: str
    name: str | None = None
    reason: str = ""
    expires_at: Count | None = None


class ToolCallDecision(InTurn):
    """The person's answer; it names the turn that the call belongs to.

    ``input`` replaces the call's when the person changed it.
    """

    type: ClassVar[str] = "tool.call.decision"
    call_id: str
    decision: Open[Decision]
    by: str | None = None
    note: str | None = None
    input: dict[str, Any] | None = None


# The session.


class SessionStatusChanged(Placed):
    """A transition. ``stop_reason`` stands on every idle, ``turn_id`` on all of a turn's.

    ``message_ids`` are the messages that a turn takes in as it begins to run. ``error`` says why a
    turn ended with ``stop_reason`` error.
    """

    type: ClassVar[str] = "session.status"
    status: Open[RunStatus]
    stop_reason: Open[StopReason] | None = None
    message_ids: list[str] = Field(default_factory=list)
    error: str | None = None
    error_type: str | None = None


class SessionUsage(InTurn, Metered):
    """The turn's meter, written immediately before its closing status, and the ledger's last word.

    A turn that rests and goes on has several; each covers the whole turn so far, without its
    subagents. ``limit`` names the one that was reached.
    """

    type: ClassVar[str] = "session.usage"
    outcome: Open[TurnOutcome] | None = None
    limit: str | None = None
    requests: Count = 0
    calls: Count = 0
    steps: Count = 0
    duration_us: Count | None = None


class SessionErrorNoted(Placed):
    """Something degraded and the turn went on."""

    type: ClassVar[str] = "session.error"
    error: str
    error_type: str | None = None
    source: str | None = None


class SessionMetadata(Logged):
    """A change of the session's metadata: these keys are set, and those that are null removed."""

    type: ClassVar[str] = "session.metadata"
    metadata: dict[str, Any]


class SessionArtifact(Placed):
    """Something that the agent published."""

    type: ClassVar[str] = "session.artifact"
    artifact_id: str
    title: str = ""
    kind: str | None = None
    url: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class SessionResumed(InTurn):
    """A crashed turn was taken over: how many open items went which way."""

    type: ClassVar[str] = "session.resumed"
    requests_retried: Count = 0
    calls_rerun: Count = 0
    calls_interrupted: Count = 0
    calls_parked: Count = 0


class TurnLease(InTurn):
    """Whoever runs the turn is still there: written when nothing else was for a while."""

    type: ClassVar[str] = "turn.lease"


# Subagents: the four things that a child session reports to its parent.


class SubagentSpawned(InTurn):
    """A child session begins. ``call_id`` is the tool call that asked for it."""

    type: ClassVar[str] = "subagent.spawned"
    session_id: str
    agent: str = ""
    task: str = ""
    call_id: str | None = None


class SubagentStatus(InTurn):
    """The child's status changed."""

    type: ClassVar[str] = "subagent.status"
    session_id: str
    status: Open[RunStatus]
    stop_reason: Open[StopReason] | None = None


class SubagentMessage(InTurn):
    """The child said something."""

    type: ClassVar[str] = "subagent.message"
    session_id: str
    message_id: str
    text: str = ""


class SubagentCompleted(InTurn, Metered):
    """The child is done; its meter covers all that it and its own children consumed."""

    type: ClassVar[str] = "subagent.completed"
    session_id: str
    stop_reason: Open[StopReason] = StopReason.COMPLETED
    result: Any = None


# Around the agent.


class ConnectionAuthorizationRequired(Placed):
    """A tool needs a grant that this identity does not have yet."""

    type: ClassVar[str] = "connection.authorization_required"
    connection_id: str
    url: str | None = None
    scopes: list[str] = Field(default_factory=list)


class ConnectionAuthorized(Placed):
    """The grant is there."""

    type: ClassVar[str] = "connection.authorized"
    connection_id: str


class SandboxEvent(Placed):
    """The lifecycle of the machine that tools run on."""

    sandbox_id: str


class SandboxAttached(SandboxEvent):
    type: ClassVar[str] = "sandbox.attached"


class SandboxReleased(SandboxEvent):
    type: ClassVar[str] = "sandbox.released"


class SandboxIdle(SandboxEvent):
    type: ClassVar[str] = "sandbox.idle"


class SandboxSnapshotted(SandboxEvent):
    type: ClassVar[str] = "sandbox.snapshotted"
    snapshot_id: str


class SandboxResumed(SandboxEvent):
    type: ClassVar[str] = "sandbox.resumed"
    snapshot_id: str | None = None


class Compaction(Placed):
    """The transcript was compacted: for the model, ``summary`` stands for all through that seq.

    People still see every message.
    """

    type: ClassVar[str] = "compaction"
    summary: str
    through_seq: Count


class CachePrefix(Placed):
    """The cached prefix was pinned, or pinned anew."""

    type: ClassVar[str] = "cache.prefix"
    prefix_id: str
    through_seq: Count = 0
    tokens: Count = 0


class HookDeadLetter(Placed):
    """A hook's delivery gave up."""

    type: ClassVar[str] = "hook.dead_letter"
    hook: str
    error: str = ""
    attempts: Count = 0


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event of a type that this version does not know, kept as it is.

    Or one whose payload does not fit its type; ``problem`` then says why.
    """

    type: str
    stored: Mapping[str, Value]
    problem: str | None = None

    def payload(self) -> dict[str, Value]:
        return dict(self.stored)


KnownEvent = (
    UserMessage
    | AgentMessage
    | MessageMetadata
    | ModelRequestStarted
    | ModelRequestCompleted
    | ModelRequestFailed
    | ModelRequestRetried
    | ToolCallStarted
    | ToolCallCompleted
    | ToolCallPending
    | ToolCallDecision
    | SessionStatusChanged
    | SessionUsage
    | SessionErrorNoted
    | SessionMetadata
    | SessionArtifact
    | SessionResumed
    | TurnLease
    | SubagentSpawned
    | SubagentStatus
    | SubagentMessage
    | SubagentCompleted
    | ConnectionAuthorizationRequired
    | ConnectionAuthorized
    | SandboxAttached
    | SandboxReleased
    | SandboxIdle
    | SandboxSnapshotted
    | SandboxResumed
    | Compaction
    | CachePrefix
    | HookDeadLetter
)
LogEvent = KnownEvent | UnknownEvent

EVENT_TYPES: Mapping[str, type[KnownEvent]] = {cls.type: cls for cls in KnownEvent.__args__}
"""Every type that this version knows, by its name in the log."""


def read_event(type: str, payload: Mapping[str, Value]) -> LogEvent:
    """The event of what the log holds; never fails, see ``UnknownEvent``."""
    cls = EVENT_TYPES.get(type)
    if cls is None:
        return UnknownEvent(type, payload)
    try:
        return cls.read(payload)
    except ValidationError as error:
        return UnknownEvent(type, payload, fit_problem(error))


def check_loggable(type: str, payload: Mapping[str, Value]) -> None:
    """Raises InvalidValue (3019) for what a log must not get from this version.

    That is a signal, and a known type whose payload does not fit. Types of the app's own are free.
    """
    if type in EPHEMERAL_KINDS:
        raise InvalidValue(f"{type} is live only and never stored: send it as a signal", path=type)
    event = read_event(type, payload)
    if isinstance(event, UnknownEvent) and event.problem is not None:
        raise InvalidValue(f"a {type} event does not fit: {event.problem}", path=type)
