"""Running one turn: do what the log asks for, write what came of it, and look at the log again.

The supervisor folds the log, asks ``next_action``, and sees to it that there is a worker for every
open item: one for the open model request, one for every open tool call. A worker does its thing and
appends what came of it, under the lease. So nothing that matters is kept in memory: a driver that
is killed at any moment leaves a log that says what was open, and another goes on from there.

Idle is written on every way out: by the supervisor, or by whoever cut the turn. A driver that finds
itself fenced out stops its workers; when it was overtaken rather than cut, it closes its own part
of the log as orphaned, for the record.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from syncline.sync import pack
from syncline.sync.sessions import (
    AgentReasoningDelta,
    AgentTextDelta,
    Ask,
    Begin,
    Call,
    Close,
    EphemeralEvent,
    Lease,
    Logged,
    Meter,
    ModelRequestFailed,
    ModelRequestStarted,
    Placed,
    RequestOutcome,
    SessionErrorNoted,
    StopReason,
    ToolCallInputDelta,
    Turn,
    TurnLease,
    TurnState,
    Work,
    closing,
    denial,
    next_action,
    placed,
    time_left,
)

from .._core import Core
from .._receipt import Receipt
from ._agent import Agent, Signaller, TurnResult
from ._answering import answered
from ._control import CONSUMED, cut, ending
from ._responder import (
    Answer,
    Degraded,
    InputDelta,
    ModelRequest,
    ReasoningDelta,
    TextDelta,
)
from ._timing import Timing
from ._tools import Subagent
from ._turn_log import Fenced, TurnLog
from ._working import Worked, run_tool

T = TypeVar("T")

logger = logging.getLogger("syncline.client")

CANCEL_S_MAX = 5.0
"""A tool that does not stop when it is cancelled is left behind after this long."""
BEATS_PER_LEASE = 3

Make = Callable[[TurnState], Sequence[Placed]]
RunChild = Callable[["Driver", Call, "Subagent"], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Bench:
    """What all turns of one runner share. ``lease_us`` is how long its silence is believed."""

    core: Core
    timing: Timing
    runner: str
    new_id: Callable[[], str]
    lease_us: int
    signal: Signaller | None
    run_child: RunChild


async def in_thread(call: Callable[..., T], *args: Any) -> T:
    """Run what may wait for the disk off the loop; once begun it runs to its end."""
    return await to_its_end(asyncio.to_thread(call, *args))


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``, which goes on to its end when the caller is cancelled.

    Who is cancelled, however often, hears of it after that end.
    """
    running = asyncio.ensure_future(work)
    cut: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError as error:
            cut = error
    if cut is None:
        return running.result()
    running.exception()  # Whoever is cancelled does not ask for it any more.
    raise cut


class Driver:
    """One turn, run under one lease. ``woken`` is set when its log may have changed."""

    def __init__(
        self,
        bench: Bench,
        agent: Agent,
        log: TurnLog,
        lease: Lease,
        turn_id: str,
        woken: asyncio.Event,
        after_append: Callable[[TurnState], Awaitable[None]] | None = None,
    ) -> None:
        self.bench = bench
        self.agent = agent
        self.log = log
        self.lease = lease
        self.turn_id = turn_id
        self._woken = woken
        self._after_append = after_append
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._writing = asyncio.Lock()
        self._answer = Answer()
        self._signals_fail = False
        self._turn = Turn(turn_id, None, 0)
        self.children: set[str] = set()

    # The log.

    async def append(self, make: Make, stage_id: str) -> Receipt | None:
        """Append what ``make`` makes of the newest state. Raises Fenced once the turn is cut."""

        def place(state: TurnState) -> Sequence[Logged]:
            self._check_ours(state)
            made = make(state)
            return placed(state, self.lease, self.bench.lease_us, made, stage_id=stage_id)

        async with self._writing:
            receipt = await in_thread(self.log.append, place, self.lease)
            state = await in_thread(self.log.refresh)
            if self._after_append is not None and receipt is not None:
                await self._after_append(state)
        self._woken.set()
        return receipt

    def _check_ours(self, state: TurnState) -> None:
        if state.running is None or state.running.id != self.turn_id:
            raise Fenced

    async def look(self) -> TurnState:
        async with self._writing:
            state = await in_thread(self.log.refresh)
        return state

    # The supervisor.

    async def run(self) -> TurnResult:
        """Run the turn until it comes to rest, or somebody else ends it."""
        metering = CONSUMED.setdefault(self.bench.core, {})
        metering[self.log.session_id] = lambda: self._answer.meter
        try:
            return await self._supervise()
        except asyncio.CancelledError:
            # Its host stops it in order: the turn rests, and the next runner goes on with it.
            await to_its_end(self._end(StopReason.SERVER_RESTART))
            raise
        except Fenced:
            return await to_its_end(self._fenced_out())
        except Exception as error:
            logger.exception("a turn of session %s failed", self.log.session_id)
            return await to_its_end(self._end(StopReason.ERROR, error=error))
        finally:
            # A parent that is cut cancels this one, who may have found out by itself: what runs
            # under it has stopped before it has.
            await to_its_end(self._stop_workers())
            metering.pop(self.log.session_id, None)

    async def _supervise(self) -> TurnResult:
        await self.agent.hooks.before_turn(self.log.session_id, self.turn_id)
        while True:
            self._woken.clear()
            self._raise_failed()
            state = await self.look()
            if state.lease != self.lease:
                raise Fenced
            self._check_ours(state)
            turn, now = state.running, self.bench.core.now
            assert turn is not None
            self._turn = turn.copy()
            left = time_left(turn, self.agent.limits, now)
            if left is not None and left <= 0:
                return await self._end(StopReason.BUDGET_REACHED, limit="time")
            action = next_action(state, self.agent.limits, len(self.agent.rungs))
            if isinstance(action, Close):
                return await self._end(action.reason, limit=action.limit)
            if not await self._act(action):
                await self._wait(state, left, now)

    async def _act(self, action: Begin | Ask | Work) -> bool:
        """See to it that somebody does it; whether the log is to be looked at again at once."""
        match action:
            case Begin():
                await self._begin(action)
                return True
            case Ask():
                self._employ(action.request_id, lambda: self._ask(action))
                return False
            case Work(denied=[]) | Work(denied=()):
                for call in action.open:
                    self._employ(call.id, lambda call=call: self._work(call))  # type: ignore[misc]
                return False
            case Work():
                await self.append(
                    lambda state: [
                        denial(_running(state), call, call.note or "the person said no")
                        for call in action.denied
                    ],
                    "tools",
                )
                return True

    async def _wait(self, state: TurnState, left: int | None, now: int) -> None:
        beat = state.alive_at + self.bench.lease_us // BEATS_PER_LEASE - now
        if beat <= 0:
            await self.append(lambda state: [TurnLease(turn_id=self.turn_id)], "lease")
            return
        await self.bench.timing.wait(self._woken, beat if left is None else min(beat, left))

    def _employ(self, key: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if key in self._workers:
            return
        worker = asyncio.ensure_future(work())
        worker.add_done_callback(lambda _: self._woken.set())
        self._workers[key] = worker

    def _raise_failed(self) -> None:
        """A worker writes what its work came to; what it raises is about the turn itself."""
        for key, worker in list(self._workers.items()):
            if worker.done():
                del self._workers[key]
                worker.result()

    async def _stop_workers(self) -> None:
        workers = set(self._workers.values())
        self._workers.clear()
        for worker in workers:
            worker.cancel()
        if workers:
            await asyncio.wait(workers, timeout=CANCEL_S_MAX)

    # Ways out.

    async def _end(
        self, reason: StopReason, *, limit: str | None = None, error: Exception | None = None
    ) -> TurnResult:
        core, session_id = self.bench.core, self.log.session_id

        def end(state: TurnState) -> Sequence[Placed]:
            self._check_ours(state)
            return ending(core, session_id, state, self.lease, reason, limit=limit, error=error)

        try:
            async with self._writing:
                await in_thread(self.log.append, end, self.lease)
                state = await in_thread(self.log.refresh)
                if self._after_append is not None:
                    await self._after_append(state)
        except Fenced:
            return await self._fenced_out()
        return self._result(state, reason, error)

    def _result(
        self, state: TurnState, reason: StopReason, error: Exception | None = None
    ) -> TurnResult:
        turn = state.turn
        ours = turn if turn is not None and turn.id == self.turn_id else None
        return TurnResult(
            session_id=self.log.session_id,
            turn_id=self.turn_id,
            stop_reason=reason,
            text="" if ours is None else ours.said,
            meter=Meter() if ours is None else ours.meter,
            error=None if error is None else str(error) or repr(error),
        )

    async def _fenced_out(self) -> TurnResult:
        """Somebody else has ended the turn, or goes on with it, or a claim before ours stands."""
        state = await self.look()
        ended = state.ended.get(self.turn_id)
        if ended is None:
            await in_thread(self._orphan)
            return self._result(state, StopReason.ORPHANED)
        # Its end is written; a subagent that had not come to whoever cut it still runs.
        await in_thread(self._cut_children)
        if ended.meter == self._turn.meter:
            await in_thread(self._count_consumed)
        return self._result(state, StopReason(ended.stop_reason))

    def _cut_children(self) -> None:
        for child in self.children:
            cut(self.bench.core, child)

    def _count_consumed(self) -> None:
        """What a request took that was cut where nobody knew how much: said for the ledger.

        Stale, as is all that is written after the end; but what was consumed is consumed.
        """
        meter, request = self._answer.meter, self._turn.request
        if request is None or meter == Meter():
            return

        failed = ModelRequestFailed(
            turn_id=self.turn_id,
            request_id=request,
            step=self._turn.step,
            outcome=RequestOutcome.USER_ABORTED,
            error="the turn was cut",
            **meter.amounts(),
        )
        self.log.append(lambda state: self._late([failed]))

    def _orphan(self) -> None:
        """Close our part of the log. It is stale: for the record and the ledger, not for the turn.

        Its subagents are left to whoever goes on with the turn.
        """

        def end(state: TurnState) -> Sequence[Logged]:
            ours = TurnState()
            ours.turn = self._turn
            now = self.bench.core.now
            return self._late(closing(ours, StopReason.ORPHANED, now, consumed=self._answer.meter))

        self.log.append(end)

    def _late(self, events: Sequence[Placed]) -> Sequence[Logged]:
        ours = TurnState()
        ours.lease, ours.turn = self.lease, self._turn
        return placed(ours, self.lease, self.bench.lease_us, events, stage_id="end")

    # Model requests.

    async def _begin(self, begin: Begin) -> None:
        request_id = self.bench.new_id()
        await self.append(
            lambda state: [
                ModelRequestStarted(
                    turn_id=self.turn_id,
                    request_id=request_id,
                    step=begin.step,
                    rung=begin.rung,
                    provider=self.agent.provider,
                    model=self.agent.model,
                    message_ids=list(begin.message_ids),
                )
            ],
            f"step.{begin.step}",
        )

    async def _ask(self, ask: Ask) -> None:
        """Issue the open request, and write the answer or the failure."""
        answer = self._answer = Answer()
        stage = f"step.{ask.step}"
        request = await self._request(ask)
        try:
            async with contextlib.aclosing(
                _generator(self.agent.rungs[ask.rung](request))
            ) as stream:
                index = 0
                async for part in stream:
                    answer.take(part)
                    if isinstance(part, Degraded):
                        await self._note(part.error, part.source, stage)
                    elif isinstance(part, TextDelta | ReasoningDelta | InputDelta):
                        await self._show(_delta(part, self.turn_id, ask, index), stage)
                        index += 1
        except (Fenced, asyncio.CancelledError):
            raise
        except Exception as error:
            await self._failed(ask, answer, error)
            return
        await self.append(
            lambda state: answered(
                _running(state),
                ask,
                answer,
                self.agent.tools,
                self.bench.new_id(),
                self.bench.core.now,
            ),
            stage,
        )
        self._answer = Answer()

    async def _request(self, ask: Ask) -> ModelRequest:
        async with self._writing:
            prompt = self.log.seen.prompt.items()
        request = ModelRequest(
            id=ask.request_id,
            session_id=self.log.session_id,
            turn_id=self.turn_id,
            step=ask.step,
            prompt=prompt,
            tools=self.agent.tools.schemas(),
            instructions=self.agent.instructions,
            model=self.agent.model,
        )
        return await self.agent.hooks.before_request(request)

    async def _failed(self, ask: Ask, answer: Answer, error: Exception) -> None:
        why = f"{type(error).__name__}: {error}"
        events: list[Placed] = [
            ModelRequestFailed(
                turn_id=self.turn_id,
                request_id=ask.request_id,
                step=ask.step,
                outcome=RequestOutcome.PROVIDER_ERROR,
                error=str(error) or repr(error),
                error_type=type(error).__name__,
                **answer.meter.amounts(),
            )
        ]
        if ask.rung + 1 < len(self.agent.rungs):
            events.append(SessionErrorNoted(error=f"the next responder is asked: {why}"))
        await self.append(lambda state: events, f"step.{ask.step}")
        self._answer = Answer()

    async def _note(self, error: str, source: str | None, stage: str) -> None:
        await self.append(lambda state: [SessionErrorNoted(error=error, source=source)], stage)

    async def _show(self, delta: EphemeralEvent, stage: str) -> None:
        """Signals are for whoever looks on: one that cannot be sent is noted once, no more."""
        if self.bench.signal is None or self._signals_fail:
            return
        try:
            self.bench.signal(self.log.session_id, delta.kind, pack(delta.payload()))
        except Exception as error:
            self._signals_fail = True
            await self._note(f"deltas are not sent: {error}", "signal", stage)

    # Tool calls.

    async def _work(self, call: Call) -> None:
        tool = self.agent.tools.get(call.name)
        await self.agent.hooks.before_tool(self.log.session_id, call)
        if isinstance(tool, Subagent):
            await self.bench.run_child(self, call, tool)
            return
        worked = await run_tool(tool, call, self.log.session_id, self.turn_id, self._record)
        await self.complete(call, worked)

    async def complete(self, call: Call, worked: Worked, before: Make | None = None) -> None:
        """Write how a call ended, in one op with what goes ``before`` it."""
        await self.append(
            lambda state: [
                *([] if before is None else before(state)),
                worked.event(self.turn_id, call),
            ],
            "tools",
        )

    async def _record(self, event: Placed) -> None:
        await self.append(lambda state: [event], "tools")


def _running(state: TurnState) -> Turn:
    assert state.running is not None, "append has checked it"
    return state.running


async def _generator(stream: Any) -> Any:
    """A generator of any async iterator, so that leaving it half read closes it."""
    try:
        async for part in stream:
            yield part
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


def _delta(
    part: TextDelta | ReasoningDelta | InputDelta, turn_id: str, ask: Ask, index: int
) -> EphemeralEvent:
    match part:
        case TextDelta():
            return AgentTextDelta(
                turn_id=turn_id, request_id=ask.request_id, text=part.text, index=index
            )
        case ReasoningDelta():
            return AgentReasoningDelta(
                turn_id=turn_id, request_id=ask.request_id, text=part.text, index=index
            )
        case InputDelta():
            call_id = f"{ask.request_id}-{part.index}"
            return ToolCallInputDelta(turn_id=turn_id, call_id=call_id, text=part.text, index=index)
