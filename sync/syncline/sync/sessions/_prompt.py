"""The prompt: what a model is shown of a session, rebuilt from the log at every step.

A user's message is in it from where a turn took it in (``message_ids`` of ``session.status`` and
``model.request.started``), not from where it was sent: what is queued, the model does not see. A
tool call stands with the message that asked for it, whenever its result came; one without a result
is shown as interrupted, and one that waits for a person as waiting, so that every call has an
answer. A compaction's summary stands for everything that came into the prompt at or before its
``through_seq``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from .._values import Value
from ._events import (
    AgentMessage,
    Compaction,
    ModelRequestCompleted,
    ModelRequestFailed,
    ModelRequestStarted,
    SessionStatusChanged,
    ToolCallCompleted,
    ToolCallDecision,
    ToolCallPending,
    UserMessage,
)
from ._logged import LogItem
from ._payload import Attachment, Decision, ToolOutcome

WAITING = "waiting"
"""The outcome shown of a call that waits for a person; the others are of ``ToolOutcome``."""


@dataclass(frozen=True, slots=True)
class PromptSummary:
    """What stands for all that was compacted."""

    text: str


@dataclass(frozen=True, slots=True)
class PromptUser:
    """A message of the user's."""

    message_id: str
    text: str
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptCall:
    """A tool call with its answer: ``outcome`` is a word of ``ToolOutcome``, or ``WAITING``.

    ``answered`` says that the log has the answer; otherwise it is what the model is shown so far.
    """

    id: str
    name: str
    input: Mapping[str, Value]
    outcome: str = ToolOutcome.INTERRUPTED
    result: Value = None
    error: str | None = None
    answered: bool = False


@dataclass(frozen=True, slots=True)
class PromptAgent:
    """A message of the model's, and the calls that it asked for with their answers."""

    message_id: str
    text: str
    reasoning: str | None = None
    calls: tuple[PromptCall, ...] = ()


PromptItem = PromptSummary | PromptUser | PromptAgent


@dataclass(frozen=True, slots=True)
class _Said:
    """An item with the seq at which it came in; an agent's names its calls."""

    seq: int | None
    item: PromptUser | PromptAgent
    call_ids: tuple[str, ...] = ()


class Prompt:
    """The fold. Each event costs the same; reading costs as much as what is read."""

    __slots__ = ("_calls", "_of_request", "_said", "_summary", "_waiting")

    def __init__(self) -> None:
        self._summary: str | None = None
        self._said: dict[str, _Said] = {}
        self._calls: dict[str, PromptCall] = {}
        self._waiting: dict[str, UserMessage] = {}
        self._of_request: dict[str, str] = {}

    def copy(self) -> Prompt:
        """An equal one that goes its own way."""
        made = Prompt()
        made._summary = self._summary
        made._said = dict(self._said)
        made._calls = dict(self._calls)
        made._waiting = dict(self._waiting)
        made._of_request = dict(self._of_request)
        return made

    def items(self) -> list[PromptItem]:
        """What the model is shown, oldest first."""
        shown: list[PromptItem] = []
        if self._summary is not None:
            shown.append(PromptSummary(self._summary))
        for said in self._said.values():
            item = said.item
            if isinstance(item, PromptAgent) and said.call_ids:
                item = replace(item, calls=tuple(self._calls[id_] for id_ in said.call_ids))
            shown.append(item)
        return shown

    def add(self, logged: LogItem) -> None:
        """Fold one event, in the order of the log."""
        match logged.event:
            case UserMessage() as event:
                if event.message_id not in self._said:
                    self._waiting.setdefault(event.message_id, event)
            case SessionStatusChanged() | ModelRequestStarted() as event:
                self._take_in(event.message_ids, logged.seq)
            case AgentMessage() as event:
                self._say(event, logged.seq)
            case ToolCallCompleted() as event:
                self._answer(event)
            case ToolCallPending() as event:
                call = self._calls.get(event.call_id)
                if call is not None and not call.answered:
                    self._calls[call.id] = replace(call, outcome=WAITING)
            case ToolCallDecision() as event:
                self._decide(event)
            case ModelRequestCompleted() | ModelRequestFailed() as event:
                # Only an open request can be issued again.
                self._of_request.pop(event.request_id, None)
            case Compaction() as event:
                self._compact(event)
            case _:
                pass

    def _take_in(self, message_ids: Iterable[str], seq: int | None) -> None:
        for id_ in message_ids:
            message = self._waiting.pop(id_, None)
            if message is not None:
                user = PromptUser(id_, message.text, tuple(message.attachments))
                self._said[id_] = _Said(seq, user)

    def _say(self, event: AgentMessage, seq: int | None) -> None:
        if event.request_id is not None:
            replaced = self._of_request.get(event.request_id)
            if replaced is not None and replaced in self._said:
                self._forget(replaced)
        if event.message_id in self._said:
            return
        if event.request_id is not None:
            self._of_request[event.request_id] = event.message_id
        for asked in event.tool_calls:
            self._calls[asked.call_id] = PromptCall(asked.call_id, asked.name, asked.input)
        item = PromptAgent(event.message_id, event.text, event.reasoning)
        # Each once: a call that a message asks for twice is one call.
        calls = tuple(dict.fromkeys(asked.call_id for asked in event.tool_calls))
        self._said[event.message_id] = _Said(seq, item, calls)

    def _answer(self, event: ToolCallCompleted) -> None:
        call = self._calls.get(event.call_id)
        if call is not None and not call.answered:
            self._calls[call.id] = replace(
                call,
                outcome=str(event.outcome),
                result=event.result,
                error=event.error,
                answered=True,
            )

    def _decide(self, event: ToolCallDecision) -> None:
        call = self._calls.get(event.call_id)
        if call is None or call.outcome != WAITING:
            return
        if event.decision == Decision.APPROVED:
            given = call.input if event.input is None else event.input
            call = replace(call, outcome=ToolOutcome.INTERRUPTED, input=given)
        else:
            call = replace(call, outcome=ToolOutcome.DENIED, error=event.note)
        self._calls[call.id] = call

    def _compact(self, event: Compaction) -> None:
        gone: list[str] = []
        for id_, said in self._said.items():
            if said.seq is None or said.seq > event.through_seq:
                break
            gone.append(id_)
        for id_ in gone:
            self._forget(id_)
        self._summary = event.summary

    def _forget(self, message_id: str) -> None:
        for call_id in self._said.pop(message_id).call_ids:
            self._calls.pop(call_id, None)
