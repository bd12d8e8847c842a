"""The transcript: a session's messages and tool calls as a person reads them.

A message counts once, however often its id comes: the first stands. An ``agent.message`` of a
request that is answered again (see ``model.request.retried``) gives way to the newer answer, which
stands where the log has it. Compaction is for the model only: a person reads all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from .._values import Value
from ._events import (
    AgentMessage,
    MessageMetadata,
    ModelRequestCompleted,
    ModelRequestFailed,
    ToolCallCompleted,
    ToolCallDecision,
    ToolCallPending,
    ToolCallStarted,
    UserMessage,
)
from ._logged import LogItem
from ._payload import Attachment, Decision

CallState = Literal["open", "parked", "denied", "done"]


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    """A message. ``seq`` is None while it waits in the outbox; ``turn_id`` only an agent's has.

    ``call_ids`` are the tool calls that it asks for, in order: see ``Transcript.call``.
    """

    id: str
    role: Literal["user", "agent"]
    text: str
    seq: int | None
    at: int
    client: str
    turn_id: str | None = None
    reasoning: str | None = None
    attachments: tuple[Attachment, ...] = ()
    call_ids: tuple[str, ...] = ()
    metadata: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TranscriptCall:
    """A tool call. ``outcome`` and ``result`` count once it is done; ``input`` is what it ran with.

    ``started_at`` and ``ended_at`` are microseconds since the Unix epoch, None when not yet.
    """

    id: str
    name: str
    input: Mapping[str, Value]
    state: CallState = "open"
    outcome: str | None = None
    result: Value = None
    error: str | None = None
    started_at: int | None = None
    ended_at: int | None = None


class Transcript:
    """The fold. Each event costs the same, however long the log is."""

    __slots__ = ("_calls", "_messages", "_of_request")

    def __init__(self) -> None:
        self._messages: dict[str, TranscriptMessage] = {}
        self._calls: dict[str, TranscriptCall] = {}
        self._of_request: dict[str, str] = {}

    def copy(self) -> Transcript:
        """An equal one that goes its own way."""
        made = Transcript()
        made._messages = dict(self._messages)
        made._calls = dict(self._calls)
        made._of_request = dict(self._of_request)
        return made

    # Reading.

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def messages(self) -> list[TranscriptMessage]:
        """All messages in the order of the log."""
        return list(self._messages.values())

    def message(self, id: str) -> TranscriptMessage | None:
        """One message by its id."""
        return self._messages.get(id)

    def call(self, id: str) -> TranscriptCall | None:
        """One tool call by its id."""
        return self._calls.get(id)

    # Folding.

    def add(self, logged: LogItem) -> None:
        """Fold one event, in the order of the log."""
        match logged.event:
            case UserMessage() as event:
                if event.message_id not in self._messages:
                    self._messages[event.message_id] = TranscriptMessage(
                        event.message_id,
                        "user",
                        event.text,
                        logged.seq,
                        logged.at,
                        logged.client,
                        attachments=tuple(event.attachments),
                        metadata=event.metadata,
                    )
            case AgentMessage() as event:
                self._say(event, logged)
            case MessageMetadata() as event:
                message = self._messages.get(event.message_id)
                if message is not None:
                    metadata = merged(message.metadata, event.metadata)
                    self._messages[message.id] = replace(message, metadata=metadata)
            case ModelRequestCompleted() | ModelRequestFailed() as event:
                # Only an open request can be issued again.
                self._of_request.pop(event.request_id, None)
            case ToolCallStarted() as event:
                self._calls[event.call_id] = TranscriptCall(
                    event.call_id, event.name, event.input, started_at=logged.at
                )
            case ToolCallCompleted() | ToolCallPending() | ToolCallDecision() as event:
                call = self._calls.get(event.call_id)
                if call is not None and call.state != "done":
                    self._calls[call.id] = _moved(call, event, logged.at)
            case _:
                pass

    def _say(self, event: AgentMessage, logged: LogItem) -> None:
        if event.request_id is not None:
            replaced = self._of_request.get(event.request_id)
            if replaced is not None:
                del self._messages[replaced]
        if event.message_id in self._messages:
            return
        if event.request_id is not None:
            self._of_request[event.request_id] = event.message_id
        for asked in event.tool_calls:
            if asked.call_id not in self._calls:
                self._calls[asked.call_id] = TranscriptCall(asked.call_id, asked.name, asked.input)
        self._messages[event.message_id] = TranscriptMessage(
            event.message_id,
            "agent",
            event.text,
            logged.seq,
            logged.at,
            logged.client,
            event.turn_id,
            event.reasoning,
            call_ids=tuple(asked.call_id for asked in event.tool_calls),
            metadata=event.metadata,
        )


def merged(metadata: Mapping[str, Value], more: Mapping[str, Value]) -> dict[str, Value]:
    """Metadata with these keys set, and those that are null removed."""
    return {key: value for key, value in {**metadata, **more}.items() if value is not None}


def _moved(
    call: TranscriptCall,
    event: ToolCallCompleted | ToolCallPending | ToolCallDecision,
    at: int,
) -> TranscriptCall:
    match event:
        case ToolCallCompleted():
            return replace(
                call,
                state="done",
                outcome=str(event.outcome),
                result=event.result,
                error=event.error,
                ended_at=at,
            )
        case ToolCallPending():
            return replace(call, state="parked")
        case ToolCallDecision():
            if event.decision != Decision.APPROVED:
                return replace(call, state="denied")
            given = call.input if event.input is None else event.input
            return replace(call, state="open", input=given)
