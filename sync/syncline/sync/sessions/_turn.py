"""What a session's log says of its turns: who runs, what waits, what is open.

``TurnState`` folds the events of one session in log order. It is all that is needed to go on with a
turn, so whoever runs one and whoever takes over a crashed one read the same thing; ``_turn_steps``
decides from it what comes next.

**The lease.** Every event that a runner writes carries its *fence* (a number) and its name. The
first event under a new fence is a claim: it names the runner that it takes over from, and stands
only when that one holds the lease at that place in the log, as in a compare-and-swap. Two devices
that both claim offline are so judged by the order of the log, the same way everywhere: one claim
stands, and what was written under the other is **stale**: kept in the log, skipped here, its
messages still waiting. No clock decides this. Clocks only tell a runner when it may *try* to
claim: when nothing was heard from the holder for the time that its claim names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, TypedDict

from ._events import (
    AgentMessage,
    LogEvent,
    ModelRequestCompleted,
    ModelRequestFailed,
    ModelRequestRetried,
    ModelRequestStarted,
    SessionResumed,
    SessionStatusChanged,
    SubagentCompleted,
    SubagentMessage,
    SubagentSpawned,
    SubagentStatus,
    ToolCallCompleted,
    ToolCallDecision,
    ToolCallPending,
    ToolCallStarted,
    UserMessage,
)
from ._payload import Decision, DeliveryMode, Metered, Placed, RunStatus, StopReason, ToolOutcome


class Lease(NamedTuple):
    """The right to run a session's turns: the number of the claim, and whose it is."""

    fence: int
    runner: str


NOBODY = Lease(0, "")
"""The lease of a session that no turn was ever run in."""

GOES_ON = frozenset({StopReason.REQUIRES_ACTION, StopReason.SERVER_RESTART})
"""An idle turn that stopped for one of these may go on; for any other it is over."""


class Phase(Enum):
    """How a tool call stands."""

    OPEN = "open"
    PARKED = "parked"
    DENIED = "denied"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of the running step. ``expires_at`` is in microseconds since the epoch."""

    id: str
    name: str
    input: dict[str, object]
    repeatable: bool
    phase: Phase = Phase.OPEN
    expires_at: int | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Child:
    """A subagent that is not done. ``reported`` counts what of its log the parent's has."""

    session_id: str
    call_id: str | None
    reported: int = 0


class Amounts(TypedDict):
    """The fields of ``Metered``."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_micros: int


@dataclass(frozen=True, slots=True)
class Meter:
    """What was consumed; money in millionths of the host's currency."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_micros: int = 0

    def plus(self, more: Metered | Meter) -> Meter:
        """The sum of both."""
        return Meter(*(getattr(self, name) + getattr(more, name) for name in self.__slots__))

    @property
    def tokens(self) -> int:
        """All tokens in and out; what came from the cache is counted among the input."""
        return self.input_tokens + self.output_tokens

    def amounts(self) -> Amounts:
        """By name, for an event that is metered."""
        return Amounts(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cache_read_tokens=self.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens,
            cost_micros=self.cost_micros,
        )


@dataclass(slots=True)
class Turn:
    """One turn, as far as it has come.

    ``step`` counts model requests that are not fallbacks, ``rung`` the failures in this step.
    ``request`` is the open model request; ``answered`` says that the newest message asks for no
    calls. ``running_since`` is None while the turn rests. ``resumptions`` in a row, with nothing
    done in between, tell a turn that kills its runners.
    """

    id: str
    parent_turn_id: str | None
    depth: int
    n: int = 0
    step: int = 0
    rung: int = 0
    request: str | None = None
    answered: bool = False
    said: str = ""
    calls: dict[str, Call] = field(default_factory=dict)
    children: dict[str, Child] = field(default_factory=dict)
    meter: Meter = Meter()
    children_meter: Meter = Meter()
    requests: int = 0
    calls_done: int = 0
    active_us: int = 0
    running_since: int | None = None
    resumptions: int = 0

    def copy(self) -> Turn:
        """An equal one that goes its own way."""
        return replace(self, calls=dict(self.calls), children=dict(self.children))

    def calls_in(self, phase: Phase) -> list[Call]:
        """The calls of the step that stand so, in the order of asking."""
        return [call for call in self.calls.values() if call.phase is phase]

    def active(self, now: int) -> int:
        """For how many microseconds it has run, rests left out."""
        since = self.running_since
        return self.active_us + (0 if since is None else max(0, now - since))


class Report(NamedTuple):
    """Something that a child session tells its parent: a status, or a message."""

    status: str | None = None
    stop_reason: str | None = None
    message_id: str = ""
    text: str = ""


class Ended(NamedTuple):
    """How a turn ended, and its meter then."""

    stop_reason: str
    meter: Meter


ENDED_MAX = 8
"""How many ended turns are remembered: for runners that hear late that theirs was cut."""


class TurnState:
    """The fold. ``waiting`` are messages that no turn took in, by id, in log order. ``ended`` are
    the newest turns that are over, by id.

    ``at`` of the newest valid event under the lease plus ``lease_us`` is when the holder is taken
    for dead. ``stale`` counts events that were written under a lease that was not theirs.
    """

    __slots__ = (
        "_messages",
        "alive_at",
        "ended",
        "lease",
        "lease_us",
        "reports",
        "stale",
        "status",
        "stop_reason",
        "turn",
        "waiting",
    )

    def __init__(self) -> None:
        self.lease = NOBODY
        self.lease_us = 0
        self.alive_at = 0
        self.status: RunStatus = RunStatus.IDLE
        self.stop_reason: str | None = None
        self.turn: Turn | None = None
        self.waiting: dict[str, UserMessage] = {}
        self.reports: list[Report] = []
        self.ended: dict[str, Ended] = {}
        self.stale = 0
        self._messages: set[str] = set()

    def copy(self) -> TurnState:
        """An equal one that goes its own way."""
        made = TurnState()
        for name in self.__slots__:
            setattr(made, name, getattr(self, name))
        made.turn = None if self.turn is None else self.turn.copy()
        made.waiting = dict(self.waiting)
        made.reports = list(self.reports)
        made.ended = dict(self.ended)
        made._messages = set(self._messages)
        return made

    # Reading.

    @property
    def running(self) -> Turn | None:
        """The turn that runs (or whose runner is gone); None when the session rests."""
        return self.turn if self.status is RunStatus.RUNNING else None

    @property
    def unfinished(self) -> Turn | None:
        """The turn that runs, or that rests and may go on."""
        if self.status is RunStatus.RUNNING:
            return self.turn
        goes_on = self.status is RunStatus.IDLE and self.stop_reason in GOES_ON
        return self.turn if goes_on else None

    @property
    def expires_at(self) -> int:
        """When the holder of the lease is taken for dead, unless it is heard from before."""
        return self.alive_at + self.lease_us

    def knows(self, message_id: str) -> bool:
        """Whether a message with this id was ever sent here."""
        return message_id in self._messages

    def next_lease(self, runner: str) -> Lease:
        """What ``runner`` would claim."""
        return Lease(self.lease.fence + 1, runner)

    # Folding.

    def take_all(self, events: Iterable[tuple[LogEvent, int]]) -> TurnState:
        """Fold these, each with its time; returns itself."""
        for event, at in events:
            self.take(event, at)
        return self

    def take(self, event: LogEvent, at: int) -> bool:
        """Fold one event, written at ``at``; False when it is stale and was skipped."""
        if isinstance(event, Placed) and event.fence is not None and not self._admits(event, at):
            self.stale += 1
            return False
        match event:
            case UserMessage():
                self._sent(event)
            case SessionStatusChanged():
                self._status(event, at)
            case SubagentSpawned() | SubagentStatus() | SubagentMessage() | SubagentCompleted():
                self._subagent(event)
            case Placed():
                turn = self.turn
                if turn is not None and event.turn_id == turn.id:
                    self._of_turn(turn, event)
        if isinstance(event, Placed) and event.seq_within_turn is not None:
            turn = self.turn
            if turn is not None and event.turn_id == turn.id:
                turn.n = max(turn.n, event.seq_within_turn)
        return True

    def _admits(self, event: Placed, at: int) -> bool:
        assert event.fence is not None
        written_under = Lease(event.fence, event.runner or "")
        if written_under != self.lease:
            claims = event.over == self.lease.runner and event.fence == self.lease.fence + 1
            if not claims:
                return False
            self.lease, self.lease_us = written_under, event.lease_us or 0
        self.alive_at = max(self.alive_at, at)
        return True

    def _sent(self, event: UserMessage) -> None:
        if event.message_id not in self._messages:
            self._messages.add(event.message_id)
            self.waiting[event.message_id] = event

    def _take_in(self, message_ids: Iterable[str]) -> None:
        for id_ in message_ids:
            self.waiting.pop(id_, None)

    def _status(self, event: SessionStatusChanged, at: int) -> None:
        turn = None
        if event.turn_id is not None:
            turn = self.turn
            if turn is None or turn.id != event.turn_id:
                depth = event.subagent_depth or 0
                turn = self.turn = Turn(event.turn_id, event.parent_turn_id, depth)
        self.status = RunStatus(event.status) if event.status in _STATUSES else RunStatus.IDLE
        self.stop_reason = None if event.stop_reason is None else str(event.stop_reason)
        self.reports.append(Report(str(event.status), self.stop_reason))
        self._take_in(event.message_ids)
        if turn is None:
            return
        if self.status is RunStatus.RUNNING:
            turn.running_since = at if turn.running_since is None else turn.running_since
        else:
            turn.active_us, turn.running_since = turn.active(at), None
            if self.stop_reason not in GOES_ON:
                self.ended.pop(turn.id, None)
                self.ended[turn.id] = Ended(self.stop_reason or "", turn.meter)
                if len(self.ended) > ENDED_MAX:
                    del self.ended[next(iter(self.ended))]

    def _subagent(
        self, event: SubagentSpawned | SubagentStatus | SubagentMessage | SubagentCompleted
    ) -> None:
        turn = self.turn
        if turn is None or event.turn_id != turn.id:
            return
        if isinstance(event, SubagentSpawned):
            turn.children[event.session_id] = Child(event.session_id, event.call_id)
        elif isinstance(event, SubagentCompleted):
            turn.children.pop(event.session_id, None)
            turn.children_meter = turn.children_meter.plus(event)
        elif (child := turn.children.get(event.session_id)) is not None:
            turn.children[child.session_id] = replace(child, reported=child.reported + 1)
            if isinstance(event, SubagentMessage):
                turn.resumptions = 0

    def _of_turn(self, turn: Turn, event: Placed) -> None:
        match event:
            case ModelRequestStarted():
                self._take_in(event.message_ids)
                if event.step != turn.step:
                    turn.step, turn.rung, turn.resumptions = event.step, 0, 0
                turn.request, turn.answered, turn.calls = event.request_id, False, {}
                turn.requests += 1
            case ModelRequestRetried():
                turn.request = event.request_id
                turn.requests += 1
                turn.meter = turn.meter.plus(event)
            case AgentMessage():
                turn.answered, turn.said = not event.tool_calls, event.text
                self.reports.append(Report(message_id=event.message_id, text=event.text))
            case ModelRequestCompleted():
                turn.request, turn.rung, turn.resumptions = None, 0, 0
                turn.meter = turn.meter.plus(event)
            case ModelRequestFailed():
                turn.request = None
                turn.rung += 1
                turn.meter = turn.meter.plus(event)
            case SessionResumed():
                turn.resumptions += 1
            case _:
                self._of_call(turn, event)

    def _of_call(self, turn: Turn, event: Placed) -> None:
        if isinstance(event, ToolCallStarted):
            repeatable = event.annotations.repeatable
            turn.calls[event.call_id] = Call(event.call_id, event.name, event.input, repeatable)
            return
        if not isinstance(event, ToolCallCompleted | ToolCallPending | ToolCallDecision):
            return
        call = turn.calls.get(event.call_id)
        if call is None or call.phase is Phase.DONE:
            return
        match event:
            case ToolCallCompleted():
                turn.calls_done += 1
                if event.outcome != ToolOutcome.INTERRUPTED:
                    turn.resumptions = 0
                call = replace(call, phase=Phase.DONE)
            case ToolCallPending():
                call = replace(call, phase=Phase.PARKED, expires_at=event.expires_at)
            case ToolCallDecision() if call.phase is Phase.PARKED:
                if event.decision == Decision.APPROVED:
                    given = call.input if event.input is None else event.input
                    call = replace(call, phase=Phase.OPEN, input=given, note=event.note)
                else:
                    call = replace(call, phase=Phase.DENIED, note=event.note)
        turn.calls[call.id] = call


_STATUSES = frozenset(RunStatus)


def first_waiting(state: TurnState) -> UserMessage | None:
    """The message that the next turn begins with: what cuts in goes before what queues."""
    messages = list(state.waiting.values())
    urgent = [message for message in messages if message.mode == DeliveryMode.INTERRUPT]
    return next(iter(urgent or messages), None)


def steering(state: TurnState) -> list[str]:
    """The messages that the next step of the running turn takes in."""
    return [id_ for id_, message in state.waiting.items() if message.mode == DeliveryMode.STEER]
