"""The trace: what ran when, within what, and how it ended.

A span is a turn, a model request or tool call of it, or a subagent. All else that happened to the
session (but for its messages) is a note at its time, what nobody here knows included.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from ._events import (
    AgentMessage,
    LogEvent,
    MessageMetadata,
    ModelRequestCompleted,
    ModelRequestFailed,
    ModelRequestRetried,
    ModelRequestStarted,
    SessionStatusChanged,
    SubagentCompleted,
    SubagentSpawned,
    ToolCallCompleted,
    ToolCallDecision,
    ToolCallPending,
    ToolCallStarted,
    UserMessage,
)
from ._logged import LogItem
from ._payload import RunStatus
from ._turn import Meter


class SpanKind(StrEnum):
    """What a span is of."""

    TURN = "turn"
    REQUEST = "request"
    CALL = "call"
    SUBAGENT = "subagent"


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took its time. Times are microseconds since the Unix epoch; None: not ended.

    ``within`` is the id of the turn that it belongs to (for a turn: of the turn whose subagent it
    is). ``outcome`` is the word that the log ended it with: a stop reason, an outcome, a finish
    reason. ``attempts`` counts how often it was begun; ``seq`` is where it first was.
    """

    kind: SpanKind
    id: str
    name: str
    within: str | None
    seq: int | None
    began_at: int
    ended_at: int | None = None
    outcome: str | None = None
    step: int | None = None
    attempts: int = 1
    meter: Meter = Meter()

    @property
    def duration_us(self) -> int | None:
        """How long it took, never below 0: the clocks of two devices may disagree."""
        return None if self.ended_at is None else max(0, self.ended_at - self.began_at)


@dataclass(frozen=True, slots=True)
class TraceNote:
    """Something that happened at a moment."""

    seq: int | None
    at: int
    event: LogEvent


class Trace:
    """The fold. Each event costs the same, however long the log is."""

    __slots__ = ("_spans", "notes")

    def __init__(self) -> None:
        self._spans: dict[tuple[SpanKind, str], Span] = {}
        self.notes: list[TraceNote] = []

    def copy(self) -> Trace:
        """An equal one that goes its own way."""
        made = Trace()
        made._spans = dict(self._spans)
        made.notes = list(self.notes)
        return made

    @property
    def spans(self) -> list[Span]:
        """All spans in the order in which they began in the log."""
        return list(self._spans.values())

    def span(self, kind: SpanKind, id: str) -> Span | None:
        """One span."""
        return self._spans.get((kind, id))

    def within(self, turn_id: str) -> list[Span]:
        """What belongs to this turn, in the order of the log."""
        return [span for span in self._spans.values() if span.within == turn_id]

    def add(self, logged: LogItem) -> None:
        """Fold one event, in the order of the log."""
        at = logged.at
        match logged.event:
            case SessionStatusChanged() as event:
                self._status(event, logged)
            case ModelRequestStarted() as event:
                name = event.model or ""
                self._begin(
                    SpanKind.REQUEST, event.request_id, name, event.turn_id, logged, event.step
                )
            case ModelRequestRetried() as event:
                again = self._spans.get((SpanKind.REQUEST, event.request_id))
                if again is not None:
                    meter = again.meter.plus(event)
                    again = replace(again, attempts=again.attempts + 1, meter=meter)
                    self._spans[SpanKind.REQUEST, event.request_id] = again
            case ModelRequestCompleted() as event:
                ended = event.finish_reason or "completed"
                self._end(SpanKind.REQUEST, event.request_id, at, ended, Meter().plus(event))
            case ModelRequestFailed() as event:
                meter = Meter().plus(event)
                self._end(SpanKind.REQUEST, event.request_id, at, str(event.outcome), meter)
            case ToolCallStarted() as event:
                self._begin(
                    SpanKind.CALL, event.call_id, event.name, event.turn_id, logged, event.step
                )
            case ToolCallCompleted() as event:
                self._end(SpanKind.CALL, event.call_id, at, str(event.outcome))
            case SubagentSpawned() as event:
                self._begin(SpanKind.SUBAGENT, event.session_id, event.agent, event.turn_id, logged)
            case SubagentCompleted() as event:
                meter = Meter().plus(event)
                self._end(SpanKind.SUBAGENT, event.session_id, at, str(event.stop_reason), meter)
            case ToolCallPending() | ToolCallDecision():
                self.notes.append(TraceNote(logged.seq, at, logged.event))
            case UserMessage() | AgentMessage() | MessageMetadata():
                pass
            case _:
                self.notes.append(TraceNote(logged.seq, at, logged.event))

    def _status(self, event: SessionStatusChanged, logged: LogItem) -> None:
        if event.turn_id is None:
            self.notes.append(TraceNote(logged.seq, logged.at, event))
        elif event.status == RunStatus.RUNNING:
            self._begin(SpanKind.TURN, event.turn_id, "", event.parent_turn_id, logged)
        else:
            ended = event.status if event.stop_reason is None else event.stop_reason
            self._end(SpanKind.TURN, event.turn_id, logged.at, str(ended))

    def _begin(
        self,
        kind: SpanKind,
        id_: str,
        name: str,
        within: str | None,
        logged: LogItem,
        step: int | None = None,
    ) -> None:
        known = self._spans.get((kind, id_))
        if known is None:
            self._spans[kind, id_] = Span(kind, id_, name, within, logged.seq, logged.at, step=step)
        else:
            self._spans[kind, id_] = replace(
                known, attempts=known.attempts + 1, ended_at=None, outcome=None
            )

    def _end(
        self, kind: SpanKind, id_: str, at: int, outcome: str, meter: Meter | None = None
    ) -> None:
        span = self._spans.get((kind, id_))
        if span is not None:
            total = span.meter if meter is None else span.meter.plus(meter)
            self._spans[kind, id_] = replace(span, ended_at=at, outcome=outcome, meter=total)
