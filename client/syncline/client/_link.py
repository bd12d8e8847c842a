"""The client's shell: a thread that holds the connection and feeds the engine.

It takes the lease, connects, moves bytes, and when a connection ends, waits and connects again:
with a growing, jittered pause, at once when the route to the server comes back, when the app asks,
or when the engine says so. Being offline uses nothing up. Everything durable is in the core; a link
that is killed at any moment loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlsplit

import websockets
from websockets.asyncio.client import ClientConnection, connect

from syncline.sync import (
    FRAME_BYTES_MAX,
    PROTOCOL,
    BadPeer,
    Forbidden,
    LeaseHeld,
    LocalError,
    SyncError,
    TimedOut,
    Unreachable,
)

from ._core import Core, LeaseLost
from ._database import CommitUnknown
from ._engine import ClientEngine, Reconnect
from ._network import is_away, route_to, why_away, why_closed
from ._track import Counts

logger = logging.getLogger("syncline.client")

BACKOFF_S_MIN = 0.5
BACKOFF_ONCE_S_MIN = 0.05
"""Somebody waits for a single sync, and gives up in time by itself."""
BACKOFF_S_MAX = 30.0
LEASE_RETRY_S = 1.0
ROUTE_POLL_S = 1.0
FOREIGN_WRITES_POLL_S = 0.2
"""How often the holder of the connection looks for what other processes wrote."""
SEND_S_MAX = 15.0
OPEN_S_MAX = 10.0
PING_S = 20.0
STOP_S_MAX = 5.0
AT_ONCE_MAX = 5
"""Reconnects without a pause in a row; after that even those wait."""
LEASE_WAIT_S_MAX = 15.0


class State(Enum):
    """How a connection stands."""

    CONNECTING = "connecting"
    ONLINE = "online"
    OFFLINE = "offline"
    WAITING = "waiting"
    REFUSED = "refused"
    CLOSED = "closed"


@dataclass(slots=True)
class _Waiter:
    """Somebody who waits until all of now is synced. ``targets``: own numbers to be settled."""

    targets: dict[str, int]
    future: Future[None]
    fails_offline: bool
    asked: bool = False
    mark: int | None = None


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What a sync did.

    ``sent`` ops went out and ``received`` entries of others came in; ``refused`` ops are in
    ``Session.refused``; ``conflicts`` were opened; ``healed`` sessions had a past that the server
    no longer shares, and ``requeued`` ops went back into the outbox for it; ``bootstrapped``
    sessions came as a snapshot. ``paused`` sessions are closed to this identity; ``pending`` ops
    still wait. ``seconds`` is how long it took.
    """

    url: str
    client_id: str
    sessions: int
    sent: int
    received: int
    refused: int
    conflicts: int
    healed: int
    requeued: int
    bootstrapped: int
    paused: tuple[str, ...]
    pending: int
    seconds: float


@dataclass(slots=True)
class _Totals:
    counts: Counts = field(default_factory=Counts)

    def add(self, more: Counts) -> None:
        for name in Counts.__slots__:
            setattr(self.counts, name, getattr(self.counts, name) + getattr(more, name))


class Link:
    """One replica's connection to one server, kept up by a thread of its own."""

    def __init__(
        self,
        core: Core,
        url: str,
        *,
        token: str | Callable[[], str | None] | None = None,
        only: Iterable[str] | None = None,
        on_signal: Callable[[str, str, bytes, str], None] | None = None,
        pause_s_min: float = BACKOFF_S_MIN,
    ) -> None:
        self._core = core
        self._pause_s_min = pause_s_min
        self.url = url
        self._check_url()
        self._token = token
        self._only = None if only is None else tuple(only)
        self._on_signal = on_signal
        self._loop = asyncio.new_event_loop()
        self._wake = asyncio.Event()
        self._stopping = False
        self._written: set[str | None] = set()
        self._skip_pause = asyncio.Event()
        self._waiters: list[_Waiter] = []
        self._totals = _Totals()
        self._engine: ClientEngine | None = None
        self._opening: asyncio.Task[ClientConnection] | None = None
        self._ever_online = False
        self._refusal: SyncError | None = None
        self._at_once = 0
        self.state = State.CONNECTING
        self.reason = ""
        self._thread = threading.Thread(target=self._main, name="syncline-link", daemon=True)

    def _check_url(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            raise BadPeer(f"{self.url!r} is no address of a sync server: ws://host:port or wss://")

    # From any thread.

    def start(self) -> None:
        self._core.on_local_write = self._local_write
        self._thread.start()

    def stop(self) -> None:
        """End the connection in order. Safe to call twice, and bounded in time."""
        if not self._thread.is_alive():
            return
        self._core.on_local_write = None
        self._call(self._stop)
        self._thread.join(STOP_S_MAX)

    def poke(self) -> None:
        """The network may be back: do not wait any longer."""

        def go() -> None:
            self._refusal = None
            self._skip_pause.set()

        self._call(go)

    def signal(self, session: str, kind: str, payload: bytes) -> None:
        """Send something ephemeral, if online; nothing is kept."""

        def send() -> None:
            if self._engine is not None and self._engine.welcome is not None:
                self._engine.signal(session, kind, payload)
                self._wake.set()

        self._call(send)

    def wait_synced(self, timeout: float | None, *, fails_offline: bool = False) -> None:
        """See ``Connection.wait_synced``."""
        waiter = _Waiter(self._core.targets(self._only), Future(), fails_offline)

        def add() -> None:
            if self._refusal is not None:
                waiter.future.set_exception(self._refusal)
                return
            self._waiters.append(waiter)
            self._wake.set()

        if not self._call(add):
            raise LocalError("the connection is closed")
        try:
            waiter.future.result(timeout)
        except FutureTimeout:
            pending = sum(self._core.targets(self._only).values())
            raise TimedOut(
                f"not synced within {timeout} s: {self.state.value}"
                + (f", {self.reason}" if self.reason else "")
                + (", writes are pending" if pending else "")
            ) from None

    def report(self, seconds: float) -> SyncReport:
        counts = self._totals.counts
        states = [s for s in self._core.states() if self._only is None or s.id in self._only]
        return SyncReport(
            url=self.url,
            client_id=self._core.client(),
            sessions=len(states),
            sent=counts.sent,
            received=counts.received,
            refused=counts.refused,
            conflicts=counts.conflicts,
            healed=counts.healed,
            requeued=counts.requeued,
            bootstrapped=counts.bootstrapped,
            paused=tuple(s.id for s in states if s.paused_code is not None),
            pending=self._core.pending_count(self._only),
            seconds=seconds,
        )

    def _call(self, function: Callable[[], object]) -> bool:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            return False  # The loop is closed: the link has ended.
        return True

    def _local_write(self, session: str) -> None:
        def note() -> None:
            self._written.add(session)
            self._wake.set()

        self._call(note)

    # In the link's own thread.

    def _stop(self) -> None:
        self._stopping = True
        if self._opening is not None:
            self._opening.cancel()
        self._wake.set()
        self._skip_pause.set()

    def _main(self) -> None:
        try:
            self._loop.run_until_complete(self._run())
        except BaseException as error:
            logger.exception("the link to %s ended", self.url)
            self._fail(error)
        finally:
            self._fail(LocalError("the connection is closed"))
            self._loop.close()

    async def _run(self) -> None:
        pause = self._pause_s_min
        while not self._stopping:
            wait: float | None = pause
            try:
                if not await self._take_lease():
                    await self._pause(LEASE_RETRY_S)
                    continue
                await self._connection()
            except Reconnect as ended:
                self._note(State.OFFLINE, str(ended))
                self._at_once += ended.at_once
                wait = 0.0 if ended.at_once and self._at_once <= AT_ONCE_MAX else pause
            except LeaseLost:
                self._note(State.WAITING, "another process has taken over the syncing")
                wait = LEASE_RETRY_S
            except (Unreachable, CommitUnknown) as error:
                self._note(State.OFFLINE, str(error))
                self._fail_offline(error)
            except SyncError as error:
                self._note(State.REFUSED, str(error))
                self._refusal = error  # For whoever asks before the next attempt.
                self._fail(error)
                wait = BACKOFF_S_MAX
            except Exception as error:
                # A bug, or something that nobody foresaw: what it met may be gone the next time.
                logger.exception("the connection to %s failed", self.url)
                self._note(State.OFFLINE, f"{type(error).__name__}: {error}")
                self._fail(error)
            if self._engine is not None and self._engine.welcome is not None:
                pause = self._pause_s_min
                self._at_once = self._at_once if wait == 0.0 else 0
            self._take_counts()
            self._engine = None  # The next attempt may not get as far as to have one.
            if wait:
                jittered = wait * random.uniform(0.5, 1.0)
                await self._pause(jittered)
                pause = min(pause * 2, BACKOFF_S_MAX)
        self._note(State.CLOSED, "closed by the app")
        with contextlib.suppress(SyncError, CommitUnknown):
            self._core.release_lease()

    async def _take_lease(self) -> bool:
        taken = self._core.acquire_lease()
        if not taken:
            self._note(State.WAITING, "another process syncs this replica")
        return taken

    async def _pause(self, seconds: float) -> None:
        """Wait, unless the app asks, or the way to the server changes."""
        self._skip_pause.clear()
        if self._stopping:
            return
        route = route_to(self.url)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._skip_pause.wait(), min(left, ROUTE_POLL_S))
                return
            if route_to(self.url) != route:
                return

    async def _connection(self) -> None:
        self._note(State.CONNECTING, "")
        self._engine = None
        self._opening = asyncio.ensure_future(self._open())
        try:
            socket_ = await self._opening
        except asyncio.CancelledError:
            # Nobody else cancels: the app has closed the connection before there was one.
            raise Reconnect("closed by the app") from None
        finally:
            self._opening = None
        token = self._token() if callable(self._token) else self._token
        engine = ClientEngine(
            self._core,
            token=token,
            only=self._only,
            random_bytes=self._core.random_bytes,
            on_signal=self._on_signal,
        )
        self._engine = engine
        for waiter in self._waiters:
            waiter.asked, waiter.mark = True, None
            waiter.targets = self._core.targets(self._only)
        try:
            await self._converse(socket_, engine)
        except websockets.ConnectionClosed as closed:
            raise Reconnect(why_closed(closed)) from closed
        except Reconnect:
            # On a dead path a goodbye is only waited for; on a live one nobody misses it.
            socket_.transport.abort()
            raise
        finally:
            await socket_.close()

    async def _open(self) -> ClientConnection:
        try:
            socket_ = await _Direct(
                self.url,
                subprotocols=[websockets.Subprotocol(PROTOCOL)],
                compression=None,
                max_size=FRAME_BYTES_MAX,
                open_timeout=OPEN_S_MAX,
                ping_interval=PING_S,
                ping_timeout=PING_S,
                close_timeout=2.0,
            )
        except (websockets.InvalidURI, websockets.InvalidHandshake) as error:
            if is_away(error):
                raise Unreachable(f"{self.url} does not answer: {error}") from error
            raise BadPeer(f"{self.url} did not accept a websocket: {error}") from error
        except (OSError, TimeoutError, EOFError) as error:
            raise Unreachable(
                f"{self.url} does not answer: {why_away(error, OPEN_S_MAX)}"
            ) from error
        if socket_.subprotocol != PROTOCOL:
            await socket_.close()
            raise BadPeer(f"{self.url} speaks websocket, but not {PROTOCOL}")
        return socket_

    async def _converse(self, socket_: ClientConnection, engine: ClientEngine) -> None:
        engine.start(_monotonic_us())
        receiving = asyncio.ensure_future(socket_.recv())
        waking = asyncio.ensure_future(self._wake.wait())
        version = self._core.foreign_version()
        try:
            while not self._stopping:
                for data in engine.take_output():
                    await _send(socket_, data)
                if engine.welcome is not None and self.state is not State.ONLINE:
                    self._ever_online = True
                    self._note(State.ONLINE, "")
                if self._serve_waiters(engine):
                    continue
                timeout = (engine.deadline() - _monotonic_us()) / 1e6
                await asyncio.wait(
                    {receiving, waking},
                    timeout=max(0.0, min(timeout, FOREIGN_WRITES_POLL_S)),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                now = _monotonic_us()
                if receiving.done():
                    data_in = receiving.result()
                    receiving = asyncio.ensure_future(socket_.recv())
                    engine.receive(data_in, now)
                if waking.done():
                    self._wake.clear()
                    waking = asyncio.ensure_future(self._wake.wait())
                    written, self._written = self._written, set()
                    for session in written:
                        engine.local_change(now, session)
                foreign = self._core.foreign_version()
                if foreign != version:
                    version = foreign
                    engine.local_change(now)
                    self._core.tell_changed()
                engine.tick(now)
        finally:
            for task in (receiving, waking):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, websockets.ConnectionClosed):
                    await task

    def _serve_waiters(self, engine: ClientEngine) -> bool:
        """Move everybody who waits one step on; whether there is something to send."""
        asked = False
        for waiter in list(self._waiters):
            if not waiter.asked:
                waiter.asked = True
                engine.list_again()
                asked = True
            elif waiter.mark is None:
                if engine.settled_down:
                    waiter.mark = engine.mark()
                    asked = True
            elif self._is_synced(engine, waiter):
                self._waiters.remove(waiter)
                self._take_counts()
                if engine.broken is not None:
                    waiter.future.set_exception(BadPeer(engine.broken))
                    continue
                self._core.note_synced()
                waiter.future.set_result(None)
        return asked

    def _is_synced(self, engine: ClientEngine, waiter: _Waiter) -> bool:
        assert waiter.mark is not None
        if not all(
            self._core.lowest_pending(id_) > n or self._is_paused(id_)
            for id_, n in waiter.targets.items()
        ):
            return False
        return engine.reached(waiter.mark)

    def _is_paused(self, id_: str) -> bool:
        return self._core.is_paused(id_)

    def _take_counts(self) -> None:
        if self._engine is not None:
            self._totals.add(self._engine.counts)
            self._engine.counts = Counts()

    def _fail(self, error: BaseException) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.future.set_exception(error)

    def _fail_offline(self, error: Exception) -> None:
        """Who asked for one sync hears at once that the server is not there."""
        if self._ever_online:
            return
        for waiter in [w for w in self._waiters if w.fails_offline]:
            self._waiters.remove(waiter)
            waiter.future.set_exception(error)

    def _note(self, state: State, reason: str) -> None:
        if (state, reason) == (self.state, self.reason):
            return
        self.state, self.reason = state, reason
        logger.info("%s: %s%s", self.url, state.value, f" ({reason})" if reason else "")
        with contextlib.suppress(SyncError, CommitUnknown):
            self._core.note_link(state.value, reason, self.url)


class Connection:
    """A replica's connection in the background; made by ``Replica.connect``."""

    def __init__(self, core: Core, link: Link, ended: Callable[[], None]) -> None:
        self._core = core
        self._link = link
        self._ended = ended

    @property
    def state(self) -> State:
        """How the connection stands now; ``reason`` says why."""
        return self._link.state

    @property
    def reason(self) -> str:
        return self._link.reason

    def wait_synced(self, timeout: float | None = None) -> None:
        """Block until what is true now on one side is true on the other.

        On return, everything written here before the call is durable on the server, and everything
        that was on the server before the call is here. ``timeout`` is in seconds. Raises TimedOut
        (3114), Forbidden (3008) when a session with writes is closed to this identity, and what the
        server refused the connection with.
        """
        self._link.wait_synced(timeout)
        paused = [id_ for id_ in self._core.targets(None) if self._core.is_paused(id_)]
        if paused:
            raise Forbidden(f"the server does not open session {', '.join(paused)} to this token")

    def poke(self) -> None:
        """Connect now, if offline: the network may be back."""
        self._link.poke()

    def signal(self, session: str, kind: str, payload: bytes = b"") -> None:
        """Tell whoever has the session open right now; nothing is stored anywhere."""
        self._link.signal(session, kind, payload)

    def close(self) -> None:
        """Disconnect. What is pending stays in the outbox."""
        self._link.stop()
        self._ended()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def sync_once(
    core: Core,
    url: str,
    *,
    token: str | None,
    only: Iterable[str] | None,
    timeout: float | None,
) -> SyncReport:
    """Send all, take all, return what happened."""
    began = time.monotonic()
    end = began + LEASE_WAIT_S_MAX if timeout is None else began + timeout
    link = Link(core, url, token=token, only=only, pause_s_min=BACKOFF_ONCE_S_MIN)
    link.start()
    try:
        left = None if timeout is None else max(0.0, end - time.monotonic())
        try:
            link.wait_synced(left, fails_offline=True)
        except TimedOut as error:
            if link.state is State.WAITING:
                raise LeaseHeld(link.reason) from error
            raise
    finally:
        link.stop()
    return link.report(time.monotonic() - began)


class _Direct(connect):
    """Follows no redirect: whoever answers at another address would get the token."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


async def _send(socket_: ClientConnection, data: bytes) -> None:
    try:
        await asyncio.wait_for(socket_.send(data), SEND_S_MAX)
    except TimeoutError as error:
        raise Reconnect(f"the server has taken nothing for {SEND_S_MAX:.0f} s") from error


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1000
