"""Playing a history: a server process, a replica file per device, a connection for each sync.

The main thread walks through the history. It does the writes itself, which need no network, and
hands the syncs, in their order, to as many threads as devices may be online at once. A device's own
steps stay in order: a step waits until the device's sync before it has ended. With one thread the
syncs are exactly those of the history, one after the other; a device that is offline may already be
writing meanwhile, which nobody can see before it syncs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from syncline.client import Replica, Session
from syncline.sync import BadPeer, TimedOut, Unreachable

from ._history import Delete, Event, History, Patch, Put, Resolve, Sync, Write
from ._process import ServerProcess
from ._proxy import CuttingProxy

SESSION = "replay"
SYNC_S_MAX = 120.0

Durability = Literal["full", "normal"]


@dataclass(frozen=True, slots=True)
class Played:
    """The files that a play left, closed; and how often the network was cut."""

    server: Path
    replicas: tuple[Path, ...]
    cuts: int


def play(
    history: History,
    folder: Path,
    *,
    online: int = 1,
    cut: float = 0.0,
    seed: int = 0,
    durability: Durability = "full",
    progress: Callable[[], None] = lambda: None,
) -> Played:
    """Play a history into an empty folder.

    Up to ``online`` devices sync at once; each connection is cut with probability ``cut``, drawn
    from ``seed``, and a sync that was cut is tried again. ``progress`` is called at each step, and
    for each device's last sync.
    """
    server, devices = folder / "server.db", folder / "devices"
    devices.mkdir()
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(ServerProcess(server, folder / "server.log"))
        url, proxy = process.url, None
        if cut:
            proxy = stack.enter_context(CuttingProxy(process.port, cut, seed))
            url = proxy.url
        replicas = {
            name: stack.enter_context(
                Replica(devices / f"{name}.db", client_id=name, durability=durability)
            )
            for name in history.devices
        }
        with _Stage(replicas, url, proxy, online, progress) as stage:
            stage.play(history)
    return Played(
        server, tuple(replica.path for replica in replicas.values()), proxy.cuts if proxy else 0
    )


class _Stage:
    def __init__(
        self,
        replicas: dict[str, Replica],
        url: str,
        proxy: CuttingProxy | None,
        online: int,
        progress: Callable[[], None],
    ) -> None:
        self._replicas = replicas
        self._sessions = {name: replica.session(SESSION) for name, replica in replicas.items()}
        self._url = url
        self._proxy = proxy
        self._progress = progress
        self._threads = ThreadPoolExecutor(online, "syncline-device")
        self._syncing: dict[str, Future[None]] = {}
        self._unsent: dict[str, None] = {}

    def __enter__(self) -> _Stage:
        return self

    def __exit__(self, *exc: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def play(self, history: History) -> None:
        for step in history.steps:
            self._wait(step.device)
            match step:
                case Write():
                    _write(self._sessions[step.device], step.device, step)
                    self._unsent[step.device] = None
                    self._progress()
                case Sync():
                    self._sync(step.device)
        # Whoever has not sent yet does so first, so that the last round finds everything.
        for name in list(self._unsent):
            self._wait(name)
            self._sync(name)
        self._wait_all()
        for name in self._replicas:
            self._sync(name)
        self._wait_all()

    def _wait(self, name: str) -> None:
        syncing = self._syncing.pop(name, None)
        if syncing is not None:
            syncing.result()

    def _wait_all(self) -> None:
        for name in list(self._syncing):
            self._wait(name)

    def _sync(self, name: str) -> None:
        self._unsent.pop(name, None)
        self._syncing[name] = self._threads.submit(self._sync_now, self._replicas[name])

    def _sync_now(self, replica: Replica) -> None:
        while True:
            cuts = self._cuts()
            try:
                replica.sync_once(self._url, sessions=[SESSION], timeout=SYNC_S_MAX)
                break
            except (BadPeer, TimedOut, Unreachable):
                if self._cuts() == cuts:
                    raise
        self._progress()

    def _cuts(self) -> int:
        return 0 if self._proxy is None else self._proxy.cuts


def _write(session: Session, client: str, step: Write) -> None:
    with session.transaction():
        for change, at in step.dated:
            match change:
                case Put(id_, fields, collection):
                    session.put(collection, id_, fields, updated_at=at)
                case Patch(id_, fields, collection):
                    session.patch(collection, id_, fields, updated_at=at)
                case Delete(id_, collection):
                    session.delete(collection, id_, updated_at=at)
                case Event(type_, payload):
                    session.append(type_, payload, updated_at=at)
                case Resolve(conflict_id):
                    _close(session, client, conflict_id)


def _close(session: Session, client: str, conflict_id: str) -> None:
    """Keep what stands: the side of the conflict that is not the loser's."""
    loser = next((c.loser.client for c in session.conflicts() if c.id == conflict_id), None)
    session.resolve_conflict(conflict_id, "remote" if loser == client else "local")
