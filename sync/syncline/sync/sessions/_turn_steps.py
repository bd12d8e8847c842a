"""What a turn does next, and what its log says then: decided from ``TurnState`` alone.

Running a turn is a loop: fold the log, ask ``next_action``, do that, append what came of it. Taking
over a crashed turn is the same loop behind ``resuming``, which makes up for what the log leaves
open; since that is one op, a crash before it or after it is one more crash of the same kind.

Every function here that ends or takes over a turn returns plain events; ``placed`` then gives them
their place in the turn and the lease that they are written under.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ._events import (
    LogEvent,
    ModelRequestFailed,
    ModelRequestRetried,
    SessionResumed,
    SessionStatusChanged,
    SessionUsage,
    SubagentCompleted,
    SubagentMessage,
    SubagentStatus,
    ToolCallCompleted,
    ToolCallDecision,
)
from ._payload import (
    Decision,
    Placed,
    RequestOutcome,
    RunStatus,
    StopReason,
    ToolOutcome,
    TurnOutcome,
    TurnPlace,
)
from ._turn import GOES_ON, Call, Lease, Meter, Phase, Turn, TurnState, first_waiting, steering

STEPS_MAX = 32
DEPTH_MAX = 3
RESUMPTIONS_MAX = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """What a turn may use up; None is no limit.

    ``steps_max`` model requests (fallbacks not counted), ``tokens_max`` and ``cost_micros_max``
    with its subagents', ``time_us_max`` microseconds of running. ``depth_max`` levels of subagents.
    ``resumptions_max`` takeovers in a row with nothing done in between: a turn that kills whoever
    runs it is then given up as orphaned.
    """

    steps_max: int = STEPS_MAX
    tokens_max: int | None = None
    cost_micros_max: int | None = None
    time_us_max: int | None = None
    depth_max: int = DEPTH_MAX
    resumptions_max: int = RESUMPTIONS_MAX


@dataclass(frozen=True, slots=True)
class Begin:
    """Record a new model request, which takes in these messages."""

    step: int
    rung: int
    message_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """Issue the open model request."""

    request_id: str
    step: int
    rung: int


@dataclass(frozen=True, slots=True)
class Work:
    """Run the open calls, and complete those that a person denied."""

    open: tuple[Call, ...]
    denied: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """The turn comes to rest."""

    reason: StopReason
    limit: str | None = None


Action = Begin | Ask | Work | Close


def next_action(state: TurnState, limits: Limits, rungs: int) -> Action:
    """What whoever holds the lease of a running turn does now. ``rungs`` responders can be tried.

    The time limit is not looked at: it cuts in on the way, see ``time_left``.
    """
    turn = state.running
    assert turn is not None, "only a running turn has a next action"
    if turn.request is not None:
        return Ask(turn.request, turn.step, turn.rung)
    at_work, denied = turn.calls_in(Phase.OPEN), turn.calls_in(Phase.DENIED)
    if at_work or denied:
        return Work(tuple(at_work), tuple(denied))
    if turn.calls_in(Phase.PARKED):
        return Close(StopReason.REQUIRES_ACTION)
    if 0 < turn.rung < rungs:
        return Begin(turn.step, turn.rung, ())
    if turn.rung:
        return Close(StopReason.ERROR)
    steers = tuple(steering(state))
    if turn.answered and not steers:
        return Close(StopReason.COMPLETED)
    if turn.step >= limits.steps_max:
        return Close(StopReason.MAX_TURNS)
    if (limit := _spent(turn, limits)) is not None:
        return Close(StopReason.BUDGET_REACHED, limit)
    return Begin(turn.step + 1, 0, steers)


def _spent(turn: Turn, limits: Limits) -> str | None:
    used = turn.meter.plus(turn.children_meter)
    if limits.tokens_max is not None and used.tokens >= limits.tokens_max:
        return "tokens"
    if limits.cost_micros_max is not None and used.cost_micros >= limits.cost_micros_max:
        return "cost"
    return None


def time_left(turn: Turn, limits: Limits, now: int) -> int | None:
    """Microseconds until the turn's time is over; None without a limit."""
    return None if limits.time_us_max is None else limits.time_us_max - turn.active(now)


# Whether to begin, and when to look again.


@dataclass(frozen=True, slots=True)
class Start:
    """Nothing runs, and this message waits."""

    message_id: str


@dataclass(frozen=True, slots=True)
class GoOn:
    """A turn that rested may go on: a person decided, or its runner was stopped in order."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """A turn runs whose runner is taken for dead."""


@dataclass(frozen=True, slots=True)
class Expire:
    """A call waited for a person longer than it may."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do, until something is written or this time (microseconds since the epoch)."""

    until: int | None = None


Readiness = Start | GoOn | TakeOver | Expire | Wait


def readiness(state: TurnState, now: int, *, at_once: bool = False) -> Readiness:
    """What somebody who wants to run this session's turns may do at ``now``.

    ``at_once``: do not wait for the holder of the lease, who is known to be gone.
    """
    if state.status is RunStatus.TERMINATED:
        return Wait()
    if state.running is not None:
        expired = at_once or now >= state.expires_at
        return TakeOver() if expired else Wait(state.expires_at)
    turn = state.unfinished
    if turn is None:
        message = first_waiting(state)
        return Wait() if message is None else Start(message.message_id)
    parked = turn.calls_in(Phase.PARKED)
    if state.stop_reason == StopReason.SERVER_RESTART:
        return GoOn()
    if len(parked) < len([call for call in turn.calls.values() if call.phase is not Phase.DONE]):
        return GoOn()
    expiries = [call.expires_at for call in parked if call.expires_at is not None]
    if expiries and now >= min(expiries):
        return Expire()
    return Wait(min(expiries, default=None))


# What the log says then.


def placed(
    state: TurnState,
    lease: Lease,
    lease_us: int,
    events: Iterable[Placed],
    *,
    stage_id: str,
    turn: Turn | None = None,
) -> list[Placed]:
    """These events at the next places of the turn (default: the state's), under this lease.

    When the lease is not the state's, the first event is the claim.
    """
    of = state.turn if turn is None else turn
    assert of is not None, "an event of a turn needs one"
    made = []
    for index, event in enumerate(events, start=1):
        claims = index == 1 and lease != state.lease
        place = TurnPlace(
            turn_id=of.id,
            stage_id=stage_id,
            seq_within_turn=of.n + index,
            parent_turn_id=of.parent_turn_id,
            subagent_depth=of.depth,
            fence=lease.fence,
            runner=lease.runner,
            over=state.lease.runner if claims else None,
            lease_us=lease_us if claims else None,
        )
        made.append(place.put(event))
    return made


def resuming(state: TurnState) -> list[Placed]:
    """What whoever takes a turn over writes first, in one op: it settles all that was open.

    A model request is issued again; a call that may run twice does; any other may have had its
    effect, and is completed as interrupted; what waits for a person goes on waiting.
    """
    turn = state.unfinished
    assert turn is not None, "there is nothing to take over"
    lost = [call for call in turn.calls_in(Phase.OPEN) if not call.repeatable]
    rerun = len(turn.calls_in(Phase.OPEN)) - len(lost)
    events: list[Placed] = []
    if state.running is None:
        events.append(SessionStatusChanged(status=RunStatus.RUNNING))
    events.append(
        SessionResumed(
            turn_id=turn.id,
            requests_retried=int(turn.request is not None),
            calls_rerun=rerun,
            calls_interrupted=len(lost),
            calls_parked=len(turn.calls_in(Phase.PARKED)),
        )
    )
    events += [
        ToolCallCompleted(
            turn_id=turn.id,
            call_id=call.id,
            name=call.name,
            outcome=ToolOutcome.INTERRUPTED,
            error="its runner went away; it may or may not have had its effect",
        )
        for call in lost
    ]
    if turn.request is not None:
        events.append(
            ModelRequestRetried(
                turn_id=turn.id,
                request_id=turn.request,
                step=turn.step,
                reason="its runner went away",
            )
        )
    return events


def going_on(state: TurnState) -> list[Placed]:
    """What is written when a person's decision lets a turn go on."""
    return [SessionStatusChanged(status=RunStatus.RUNNING)]


def closing(
    state: TurnState,
    reason: StopReason,
    now: int,
    *,
    consumed: Meter | None = None,
    children: Sequence[Placed] = (),
    limit: str | None = None,
    error: str | None = None,
    error_type: str | None = None,
) -> list[Placed]:
    """What ends or rests the turn, in one op: its meter, then idle with the reason.

    An open model request fails with it, with what it has ``consumed`` so far; but one that may go
    on (``server_restart``) stays open, to be issued again. Open calls stay open in the log.
    ``children`` are the last reports of subagents that were cut along.
    """
    turn = state.turn
    assert turn is not None, "there is no turn to end"
    events: list[Placed] = []
    meter, outcome = turn.meter, turn_outcome(turn, reason)
    if turn.request is not None and reason not in GOES_ON:
        more = consumed or Meter()
        meter = meter.plus(more)
        events.append(
            ModelRequestFailed(
                turn_id=turn.id,
                request_id=turn.request,
                step=turn.step,
                outcome=_request_outcome(outcome),
                error=error or f"the turn ended: {reason}",
                error_type=error_type,
                **more.amounts(),
            )
        )
    events += children
    events.append(
        SessionUsage(
            turn_id=turn.id,
            outcome=outcome,
            limit=limit,
            requests=turn.requests,
            calls=turn.calls_done,
            steps=turn.step,
            duration_us=turn.active(now),
            **meter.amounts(),
        )
    )
    events.append(
        SessionStatusChanged(
            status=RunStatus.IDLE, stop_reason=reason, error=error, error_type=error_type
        )
    )
    return events


def turn_outcome(turn: Turn, reason: StopReason) -> TurnOutcome:
    """The ledger's word for a way out: a person's cut is no failure of the provider's."""
    match reason:
        case StopReason.INTERRUPTED:
            return TurnOutcome.USER_ABORTED
        case StopReason.ERROR if turn.rung:
            return TurnOutcome.PROVIDER_ERROR
        case StopReason.ERROR:
            return TurnOutcome.ERROR
        case StopReason.COMPLETED:
            return TurnOutcome.SUCCESS
        case StopReason.MAX_TURNS | StopReason.BUDGET_REACHED | StopReason.DECISION_EXPIRED:
            return TurnOutcome.LIMITED
        case StopReason.REQUIRES_ACTION | StopReason.SERVER_RESTART:
            return TurnOutcome.PAUSED
        case StopReason.ORPHANED:
            return TurnOutcome.ORPHANED


def _request_outcome(outcome: TurnOutcome) -> RequestOutcome:
    if outcome is TurnOutcome.USER_ABORTED:
        return RequestOutcome.USER_ABORTED
    return RequestOutcome.CANCELLED


def expiring(state: TurnState, now: int) -> list[Placed]:
    """What is written when nobody decided in time: the turn is over."""
    turn = state.unfinished
    assert turn is not None, "there is no turn that waits"
    events: list[Placed] = []
    for call in turn.calls_in(Phase.PARKED):
        events.append(ToolCallDecision(turn_id=turn.id, call_id=call.id, decision=Decision.EXPIRED))
        events.append(denial(turn, call, "nobody decided in time"))
    return events + closing(state, StopReason.DECISION_EXPIRED, now)


def denial(turn: Turn, call: Call, error: str) -> ToolCallCompleted:
    """The end of a call that a person did not allow: the model is told, nothing ran."""
    return ToolCallCompleted(
        turn_id=turn.id,
        call_id=call.id,
        name=call.name,
        outcome=ToolOutcome.DENIED,
        error=error,
    )


def reports(parent: Turn, child: TurnState, session_id: str) -> list[Placed]:
    """What of the child's log its parent's does not tell yet.

    Counted, not remembered: whoever takes over a crashed parent reports each thing once.
    """
    known = parent.children.get(session_id)
    made: list[Placed] = []
    for report in child.reports[known.reported if known is not None else len(child.reports) :]:
        if report.status is None:
            made.append(
                SubagentMessage(
                    turn_id=parent.id,
                    session_id=session_id,
                    message_id=report.message_id,
                    text=report.text,
                )
            )
        else:
            made.append(
                SubagentStatus(
                    turn_id=parent.id,
                    session_id=session_id,
                    status=report.status,
                    stop_reason=report.stop_reason,
                )
            )
    return made


def finished(parent: Turn, child: TurnState, session_id: str) -> SubagentCompleted:
    """The child's last report: how it ended, its answer, and all that it consumed."""
    turn = child.turn
    assert turn is not None, "the child has run"
    return SubagentCompleted(
        turn_id=parent.id,
        session_id=session_id,
        stop_reason=child.stop_reason or StopReason.COMPLETED,
        result=turn.said,
        **turn.meter.plus(turn.children_meter).amounts(),
    )


def standing(events: Iterable[tuple[LogEvent, int]]) -> Iterable[LogEvent]:
    """The events that stand: those written under a lease that was not theirs are left out."""
    state = TurnState()
    for event, at in events:
        if state.take(event, at):
            yield event
