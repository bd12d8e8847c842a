"""The sync server as one object: an engine over a store, listening on an address."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from syncline.sync import AddressTaken, LocalError
from syncline.sync.sessions import SessionStore

from ._auth import Tokens
from ._coordinator import AHEAD_US_MAX
from ._engine import BOOTSTRAP_ENTRIES_MIN, PEER_BUFFER_BYTES_MAX, ServerEngine
from ._gateway import CONNECTIONS_MAX, WAITING_PEERS_MAX, Gateway
from ._session_store import SharedSessionStore
from ._store import Store

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8787


class SyncServer:
    """A sync server. ``start`` and ``stop`` run it beside an app, ``serve_forever`` is all of it.

    Without ``tokens`` everybody may open every session, so it then listens on loopback only.
    Once it listens the store is its own, and closed when it stops. It runs once.
    """

    def __init__(
        self,
        store: Store,
        *,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        tokens: Tokens | None = None,
        ahead_us_max: int = AHEAD_US_MAX,
        bootstrap_entries_min: int = BOOTSTRAP_ENTRIES_MIN,
        peer_buffer_bytes_max: int = PEER_BUFFER_BYTES_MAX,
        waiting_peers_max: int = WAITING_PEERS_MAX,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        if tokens is None and not _is_loopback(host):
            raise LocalError(
                f"without tokens the server listens on loopback only, not on {host}: "
                "give it a token, or use 127.0.0.1"
            )
        self._store = store
        self._host = host
        self._port = port
        self._waiting_peers_max = waiting_peers_max
        self._connections_max = connections_max
        self._engine = ServerEngine(
            store,
            tokens,
            ahead_us_max=ahead_us_max,
            bootstrap_entries_min=bootstrap_entries_min,
            peer_buffer_bytes_max=peer_buffer_bytes_max,
        )
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ended: Future[None] = Future()
        self._gateway: Gateway | None = None

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._port

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"ws://{host}:{self._port}"

    def start(self) -> None:
        """Listen, in a thread of its own; returns when it does. Raises AddressTaken (3111)."""
        listening: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(listening,), name="syncline-server-loop"
        )
        self._thread.start()
        try:
            listening.result()
        except BaseException:
            self._thread.join()
            self._thread = None
            raise

    def stop(self) -> None:
        """End all connections with 1001, finish the group under way, close the store.

        Raises the error by which the engine ended, if it did.
        """
        if self._thread is None:
            return
        if self._loop is not None and self._stop is not None:
            # The loop is closed already when the engine ended by an error.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._thread = None
        self._ended.result()

    def session_store(self) -> SessionStore:
        """The sessions of this server, while it runs: what is saved is sent to all who are there.

        From any thread but the server's own; calls wait for the group that is being committed.
        Raises LocalError when the server does not run, as does each call after it has stopped.
        """
        if self._gateway is None:
            raise LocalError("the server does not run: start it first")
        return SharedSessionStore(self._gateway.call, self._store, self._engine.committed)

    def serve_forever(self, listening: Callable[[SyncServer], None] | None = None) -> None:
        """Serve in this thread, the main one, until SIGINT or SIGTERM ends it cleanly.

        ``listening`` is called once it does. A second signal waits for nobody's goodbye; the
        group under way is finished whatever happens.
        """

        def ready() -> None:
            if listening is not None:
                listening(self)

        asyncio.run(self._main(ready, signals=True))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self, listening: Future[None]) -> None:
        try:
            asyncio.run(self._main(lambda: listening.set_result(None), signals=False))
        except BaseException as error:
            if not listening.done():
                listening.set_exception(error)
            else:
                self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _main(self, listening: Callable[[], None], *, signals: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = stop = asyncio.Event()
        gateway = Gateway(self._engine, self._store, self._waiting_peers_max, self._connections_max)
        try:
            self._port = await gateway.listen(self._host, self._port)
        except OSError as error:
            where = f"{self._host}:{self._port}"
            if error.errno == errno.EADDRINUSE:
                raise AddressTaken(f"{where} is in use", address=where) from error
            raise LocalError(f"cannot listen on {where}: {error.strerror or error}") from error
        if signals:
            _on_signals(self._loop, lambda: gateway.hurry() if stop.is_set() else stop.set())
        self._gateway = gateway
        try:
            listening()
            # An engine that fails ends the server as well.
            gateway.failed.add_done_callback(lambda _: stop.set())
            await stop.wait()
        finally:
            await gateway.close()
        if gateway.failed.done():
            gateway.failed.result()


def _on_signals(loop: asyncio.AbstractEventLoop, handle: Callable[[], object]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, handle)
        except NotImplementedError:
            # Windows: the handler runs in the main thread, between two steps of the loop.
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(handle))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
