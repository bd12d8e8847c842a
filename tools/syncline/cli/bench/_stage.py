"""Where one measurement takes place: a folder, its servers and its clients, all gone at the end."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from ..replay import ServerProcess
from ._actor import Actor


@dataclass(frozen=True)
class Side:
    """Who is measured: Syncline, or the floor."""

    name: str
    program: tuple[str, ...]
    part: str


SYNCLINE = Side("syncline", ("syncline.cli", "serve"), "_device:Device")
FLOOR = Side("floor", (f"{__package__}._floor",), "_floor_part:FloorPart")


@dataclass
class Server:
    """A server to connect to. ``process`` is None for one that ran already."""

    url: str
    process: ServerProcess | None = None
    start_s: float = 0.0

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


class Stage:
    """``with Stage(folder, side) as stage``: on leaving, every process and file of it is gone."""

    def __init__(
        self, folder: Path, side: Side, url: str | None = None, token: str | None = None
    ) -> None:
        self.folder = folder / uuid.uuid4().hex[:12]
        self.side = side
        self.session = str(uuid.uuid4())
        self._url = url
        self.token = token
        self._exits = ExitStack()
        self._servers: list[ServerProcess] = []
        self._actors: list[Actor] = []
        self._count = 0

    def __enter__(self) -> Self:
        self.folder.mkdir()
        self._exits.callback(shutil.rmtree, self.folder, ignore_errors=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            # Nobody waits for those who may be in the middle of something.
            for actor in self._actors:
                actor.kill()
            self._actors.clear()
        self._exits.__exit__(kind, error, trace)

    @property
    def server_file(self) -> Path:
        return self.folder / "server.db"

    def server(self, port: int = 0) -> Server:
        """Start a server on this stage's data file; or the one that runs already."""
        if self._url is not None:
            return Server(self._url)
        process = ServerProcess(
            self.server_file,
            self.folder / f"server-{self._next()}.log",
            port=port,
            program=self.side.program,
        )
        began = time.perf_counter()
        self._exits.enter_context(process)
        self._servers.append(process)
        return Server(process.url, process, time.perf_counter() - began)

    def stop(self, server: Server) -> None:
        """End a server that was started here, in order."""
        if server.process is not None and server.process in self._servers:
            self._servers.remove(server.process)
            server.process.stop()

    def client(self, name: str) -> Actor:
        """A process that plays a client of this side, with its file open."""
        return self.clients(name)[0]

    def clients(self, *names: str) -> list[Actor]:
        """Several of them, made side by side."""
        actors = [self.actor(name, self.side.part) for name in names]
        for name, actor in zip(names, actors, strict=True):
            actor.tell("open", str(self.file_of(name)), name, self.session, self.token)
        for actor in actors:
            actor.answer()
        return actors

    def file_of(self, name: str) -> Path:
        return self.folder / f"{name}.db"

    def disk_bytes(self, file: str) -> int:
        """What a file takes with all that lies beside it."""
        return sum(path.stat().st_size for path in self.folder.glob(f"{file}*"))

    def remove(self, name: str) -> None:
        """Remove a client's files, so that the next of this name is fresh."""
        for path in self.folder.glob(f"{name}.db*"):
            path.unlink()

    def actor(self, name: str, part: str) -> Actor:
        log = self.folder / f"{name}-{self._next()}.log"
        actor = Actor(f"{self.side.name}'s {name}", part, log, self.check)
        self._actors.append(actor)
        self._exits.callback(self._end, actor)
        return actor

    @contextmanager
    def metered(self, server: Server) -> Iterator[tuple[Actor, str]]:
        """A relay before the server that counts what passes, and the address to use for it."""
        meter = self.actor("meter", "_meter:Meter")
        yield meter, meter.ask("listen", server.url)
        self.end(meter)

    def end(self, *actors: Actor) -> None:
        """End these clients, side by side."""
        for actor in actors:
            actor.leave()
        for actor in actors:
            self._end(actor)

    def check(self) -> None:
        """Raises LocalError, naming it, when a process has died."""
        for server in self._servers:
            server.check()
        for actor in self._actors:
            actor.alive()

    def _end(self, actor: Actor) -> None:
        if actor in self._actors:
            self._actors.remove(actor)
            actor.end()

    def _next(self) -> int:
        self._count += 1
        return self._count
