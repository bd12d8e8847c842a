"""Who runs the turns of sessions: watches them, claims what is to be run, and runs it.

Any number of runners may serve the same sessions, in several processes and on several devices: the
lease says who runs a turn. Where a server is connected, a runner lets it judge a fresh claim before
it spends anything; offline, its own replica is all there is to ask, and should another device have
claimed meanwhile, the log decides when they meet. What is written under the claim that does not
stand is kept as stale, and its messages wait for the next turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from syncline.sync import LocalError
from syncline.sync.sessions import (
    Expire,
    GoOn,
    Lease,
    Logged,
    Placed,
    RunStatus,
    SessionStatusChanged,
    Start,
    StopReason,
    TakeOver,
    Turn,
    TurnState,
    Wait,
    expiring,
    going_on,
    placed,
    readiness,
    resuming,
)

from .._receipt import Receipt
from .._replica import Replica
from .._session import Session
from ._agent import Agent, Signaller, TurnResult
from ._control import LEASE_US, ending, new_runner
from ._driver import Bench, Driver, in_thread
from ._ids import new_session_id
from ._subagents import AfterAppend, ancestry, run_child
from ._timing import RealTiming, Timing
from ._turn_log import TurnLog

logger = logging.getLogger("syncline.client")

POLL_US = 200_000
"""How often a serving runner looks for what other processes wrote, and for new sessions."""
RETRY_US = 5_000_000
"""When a session is tried again whose log could not be read or written."""
SETTLE_US = 5_000_000
SETTLE_POLL_US = 50_000
STOP_S_MAX = 15.0


class TurnRunner:
    """Runs turns of a replica's sessions with an agent (or with what ``agent`` says of each id).

    ``lease_us``: for how many microseconds of silence this runner is believed to live; another
    takes its turn over after that. ``signal`` sends deltas (``Connection.signal``). ``online`` says
    whether a server is connected (default: what the replica knows); a fresh claim then waits until
    the log has it, for at most ``settle_us``. ``when_offline="wait"``: begin nothing offline, the
    messages wait in the outbox; ``"run"``: this device is the runner, also offline. A turn that
    another device runs is never taken over offline.
    """

    def __init__(
        self,
        replica: Replica,
        agent: Agent | Callable[[str], Agent],
        *,
        lease_us: int = LEASE_US,
        signal: Signaller | None = None,
        online: Callable[[], bool] | None = None,
        when_offline: Literal["run", "wait"] = "run",
        settle_us: int = SETTLE_US,
        timing: Timing | None = None,
        new_id: Callable[[], str] = new_session_id,
    ) -> None:
        self._replica = replica
        self._core = core = replica._core
        self._agent = agent
        self._online = online or (lambda: (core.link() or {}).get("state") == "online")
        self._when_offline = when_offline
        self._settle_us = settle_us
        self._client = core.client()
        self._bench = Bench(
            core=core,
            timing=timing or RealTiming(),
            runner=new_runner(core),
            new_id=new_id,
            lease_us=lease_us,
            signal=signal,
            run_child=lambda parent, call, tool: run_child(self._attend_child, parent, call, tool),
        )
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], object] | None = None
        self._retry_at: dict[str, int] = {}

    @property
    def name(self) -> str:
        """By which its leases are held."""
        return self._bench.runner

    # From asyncio.

    async def run(self, session: Session) -> list[TurnResult]:
        """Run all that can be run now; how each turn came to rest.

        Cancelling it stops the turn in order: it rests with ``server_restart``, and goes on with
        the next runner.
        """
        return await self._attend(session.id, self._agent_of(session.id))

    async def serve(self, sessions: Iterable[Session] | None = None) -> None:
        """Run turns as they come, until cancelled; without ``sessions``, of all in the replica.

        Also what crashed runners of before left behind, and what may go on.
        """
        wanted = None if sessions is None else [session.id for session in sessions]
        attended: dict[str, asyncio.Task[list[TurnResult]]] = {}
        wakes: list[asyncio.Event] = []
        never = asyncio.Event()
        version = self._core.foreign_version()
        try:
            while True:
                for id_ in self._to_serve(wanted):
                    if id_ not in attended and self._core.now >= self._retry_at.get(id_, 0):
                        woken = asyncio.Event()
                        wakes.append(woken)
                        attended[id_] = asyncio.ensure_future(
                            self._attend(id_, self._agent_of(id_), forever=True, woken=woken)
                        )
                await self._bench.timing.wait(never, POLL_US)
                for id_ in [id_ for id_, task in attended.items() if task.done()]:
                    self._retry_at[id_] = self._core.now + RETRY_US
                    error = attended.pop(id_).exception()
                    logger.error("the turns of session %s failed", id_, exc_info=error)
                foreign = self._core.foreign_version()
                if foreign != version:
                    version = foreign
                    for woken in wakes:
                        woken.set()
        finally:
            for task in attended.values():
                task.cancel()
            if attended:
                await asyncio.wait(attended.values())

    def _to_serve(self, wanted: Sequence[str] | None) -> Sequence[str]:
        """The sessions that are nobody's subagents: those are run by their parents' turns."""
        ids = self._core.session_ids() if wanted is None else wanted
        return [id_ for id_ in ids if ancestry(self._core, id_)[1] == 0]

    def _agent_of(self, session_id: str) -> Agent:
        return self._agent(session_id) if callable(self._agent) else self._agent

    # From anywhere else.

    def start(self, sessions: Iterable[Session] | None = None) -> None:
        """Serve in a thread, until ``close``. Raises LocalError when it does already."""
        if self._thread is not None:
            raise LocalError("this runner serves already: close it first")
        loop = asyncio.new_event_loop()
        serving = loop.create_task(self.serve(sessions))

        def main() -> None:
            try:
                with contextlib.suppress(asyncio.CancelledError):
                    loop.run_until_complete(serving)
            finally:
                loop.run_until_complete(loop.shutdown_default_executor())
                loop.close()

        self._stop = lambda: loop.call_soon_threadsafe(serving.cancel)
        self._thread = threading.Thread(target=main, name="syncline-turns", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving; a turn under way rests, and the next runner goes on with it."""
        thread, self._thread = self._thread, None
        if thread is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # It has ended by itself.
                self._stop()
            thread.join(STOP_S_MAX)

    def __enter__(self) -> TurnRunner:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # One session.

    async def _attend_child(
        self, session_id: str, agent: Agent, tell: AfterAppend
    ) -> TurnResult | None:
        results = await self._attend(session_id, agent, child=tell)
        return results[-1] if results else None

    async def _attend(
        self,
        session_id: str,
        agent: Agent,
        *,
        forever: bool = False,
        woken: asyncio.Event | None = None,
        child: AfterAppend | None = None,
    ) -> list[TurnResult]:
        """Run what is ready. A child is waited for until its turn is over, whoever decides."""
        log, woken = TurnLog(self._core, session_id), woken or asyncio.Event()
        results: list[TurnResult] = []
        at_once = child is not None
        with self._watching(session_id, woken):
            while True:
                woken.clear()
                state = await in_thread(log.refresh)
                ready = self._readiness(state, at_once)
                if isinstance(ready, Wait):
                    over = child is None or (state.turn is not None and state.unfinished is None)
                    if over and not forever:
                        return results
                    us = None if ready.until is None else max(0, ready.until - self._core.now)
                    await self._bench.timing.wait(woken, us)
                    continue
                at_once = False
                claimed = await in_thread(self._claim, log, type(ready), agent)
                if claimed is None:
                    continue
                lease, turn_id, receipt = claimed
                if child is not None:
                    await child(await in_thread(log.refresh))
                if turn_id is None or not await self._stands(receipt, woken):
                    continue
                driver = Driver(self._bench, agent, log, lease, turn_id, woken, child)
                results.append(await driver.run())
                if forever:
                    results.clear()

    def _readiness(
        self, state: TurnState, at_once: bool
    ) -> Start | GoOn | TakeOver | Expire | Wait:
        ready = readiness(state, self._core.now, at_once=at_once)
        if isinstance(ready, Wait) or at_once:
            return ready
        foreign = not state.lease.runner.startswith(f"{self._client}-")
        held_back = self._when_offline == "wait" or (isinstance(ready, TakeOver) and foreign)
        if held_back and not self._online():
            return Wait(self._core.now + POLL_US)
        return ready

    @contextlib.contextmanager
    def _watching(self, session_id: str, woken: asyncio.Event):  # type: ignore[no-untyped-def]
        loop = asyncio.get_running_loop()

        def wake(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # The loop has ended.
                loop.call_soon_threadsafe(woken.set)

        stop = self._core.watchers.add(session_id, None, wake)
        try:
            yield
        finally:
            stop()

    async def _stands(self, receipt: Receipt | None, woken: asyncio.Event) -> bool:
        """Whether the claim may be acted on: the log has it, or there is no server to ask.

        (Whether it stood is for the driver to see, before it does anything.)
        """
        until = self._core.now + self._settle_us
        while receipt is not None and self._online() and self._core.now < until:
            state = await in_thread(lambda: receipt.state)
            if not state.pending:
                break
            woken.clear()
            await self._bench.timing.wait(woken, SETTLE_POLL_US)
        return True

    def _claim(
        self, log: TurnLog, wanted: type[Start | GoOn | TakeOver | Expire], agent: Agent
    ) -> tuple[Lease, str | None, Receipt | None] | None:
        """Claim the lease with what follows from it, in one op; None when it is not so any more.

        The turn's id is None when the turn ended with that.
        """
        claimed: list[tuple[Lease, str | None]] = []

        def claim(state: TurnState) -> Sequence[Logged]:
            lease = state.next_lease(self._bench.runner)
            now = self._core.now
            ready = readiness(state, now, at_once=wanted is TakeOver)
            if not isinstance(ready, wanted):
                return []
            turn = state.unfinished
            match ready:
                case Start():
                    return self._start(log, state, lease, ready.message_id, claimed)
                case Expire():
                    claimed.append((lease, None))
                    return self._placed(state, lease, expiring(state, now), "end")
            assert turn is not None
            if turn.resumptions >= agent.limits.resumptions_max:
                claimed.append((lease, None))
                error = f"given up: {turn.resumptions} runners went away with it in a row"
                return ending(
                    self._core, log.session_id, state, lease, StopReason.ORPHANED, error=error
                )
            claimed.append((lease, turn.id))
            orderly = state.running is None and state.stop_reason == StopReason.REQUIRES_ACTION
            events = going_on(state) if orderly else resuming(state)
            return self._placed(state, lease, events, "start")

        receipt = log.append(claim)
        return None if not claimed else (*claimed[0], receipt)

    def _start(
        self,
        log: TurnLog,
        state: TurnState,
        lease: Lease,
        message_id: str,
        claimed: list[tuple[Lease, str | None]],
    ) -> list[Placed]:
        turn = Turn(self._bench.new_id(), *ancestry(self._core, log.session_id))
        claimed.append((lease, turn.id))
        events = [SessionStatusChanged(status=RunStatus.RUNNING, message_ids=[message_id])]
        return self._placed(state, lease, events, "start", turn)

    def _placed(
        self,
        state: TurnState,
        lease: Lease,
        events: Sequence[Placed],
        stage_id: str,
        turn: Turn | None = None,
    ) -> list[Placed]:
        return placed(state, lease, self._bench.lease_us, events, stage_id=stage_id, turn=turn)
