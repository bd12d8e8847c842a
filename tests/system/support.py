"""A server with its clients in one folder, and the check that every case ends with.

``World.check`` closes all files and reads them with the verifier, which shares no code with what
wrote them: every hash, number, record and ledger row is recomputed, sequences are dense, each
replica equals the server byte for byte, and outboxes hold exactly what the test says.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from syncline.cli.verify import Report, compare_files, verify_file
from syncline.client import Replica, Session
from syncline.server import SqliteStore, SyncServer
from syncline.sync import Entry

ROOT = Path(__file__).parents[2]
SECOND = 1_000_000
SESSION = "case"


def now_us() -> int:
    return time.time_ns() // 1000


def eventually(
    predicate: Callable[[], object],
    timeout: float = 10.0,
    *,
    each: Callable[[], object] = lambda: None,
) -> None:
    """Wait until it holds, calling ``each`` meanwhile; fail when it does not in time (seconds)."""
    never = threading.Event()
    end = time.monotonic() + timeout
    while not predicate():
        assert time.monotonic() < end, f"not so within {timeout} s"
        each()
        never.wait(0.01)


class World:
    """A folder with one server's file and the replicas of its clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "server.db"
        self.server: SyncServer | None = None
        self.process: ServerProcess | None = None
        self._replicas: dict[Path, Replica] = {}
        self.files: list[Path] = []

    # The server.

    def start(self, *, port: int = 0, **options: Any) -> SyncServer:
        """A server in this process."""
        self.server = SyncServer(SqliteStore(self.data), port=port, **options)
        self.server.start()
        return self.server

    def start_process(
        self, port: int = 0, *, token: str = "", log: Path | None = None
    ) -> ServerProcess:
        """The server as its operator starts it; what it logs goes to the file ``log``."""
        self.process = ServerProcess(self.data, port, token=token, log=log)
        return self.process

    def stop(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            server.stop()
        process, self.process = self.process, None
        if process is not None:
            process.stop()

    @property
    def url(self) -> str:
        if self.process is not None:
            return self.process.url
        assert self.server is not None
        return self.server.url

    # Clients.

    def replica(self, name: str, **options: Any) -> Replica:
        """Open the replica of this name; the same object until it is closed by ``close``."""
        path = self.folder / f"{name}.db"
        if path not in self._replicas:
            self.add(path)
            self._replicas[path] = Replica(path, **({"client_id": name} | options))
        return self._replicas[path]

    def session(self, name: str, session: str = SESSION, **options: Any) -> Session:
        return self.replica(name, **options).session(session)

    def add(self, path: Path) -> Path:
        """A replica's file that somebody else opens is checked as well."""
        if path not in self.files:
            self.files.append(path)
        return path

    def close(self, *names: str) -> None:
        """Close these replicas, or all."""
        paths = [self.folder / f"{name}.db" for name in names] or list(self._replicas)
        for path in paths:
            if path in self._replicas:
                self._replicas.pop(path).close()

    def sync(self, *names: str, url: str | None = None, token: str | None = None) -> None:
        """One sync each, in this order (default: all that are open)."""
        paths = [self.folder / f"{name}.db" for name in names] or list(self._replicas)
        for path in paths:
            self._replicas[path].sync_once(url or self.url, token=token, timeout=30)

    def settle(self) -> None:
        """Sync all that are open until each has what the others sent."""
        self.sync()
        self.sync()

    # The end of every case.

    def check(
        self, pending: Mapping[str, int] | None = None, apart: Iterable[str] = ()
    ) -> dict[str, Report]:
        """All is well in all files, once they are closed; returns the reports by name.

        ``pending`` says how many ops wait in whose outbox, and why is the test's to know.
        ``apart`` names replicas that are not at the server's head; each is verified by itself.
        """
        self.close()
        self.stop()
        reports = {path.stem: verify_file(path) for path in (self.data, *self.files)}
        for report in reports.values():
            assert report.all_problems() == []
        together = [path for path in self.files if path.stem not in set(apart)]
        assert compare_files(self.data, together) == []
        for path in self.files:
            waiting = sum(session.pending for session in reports[path.stem].sessions)
            assert waiting == (pending or {}).get(path.stem, 0), f"{path.stem} has {waiting} ops"
        for id_, seqs in self.seqs().items():
            assert seqs == list(range(1, len(seqs) + 1)), f"{id_} is not dense"
        return reports

    def seqs(self) -> dict[str, list[int]]:
        """The seqs of each session, as they stand in the server's file."""
        rows = self.query(
            "SELECT s.id, l.seq FROM log l JOIN sessions s USING (session) ORDER BY s.id, l.seq"
        )
        found: dict[str, list[int]] = {}
        for id_, seq in rows:
            found.setdefault(id_, []).append(seq)
        return found

    def log(self, session: str = SESSION) -> list[Entry]:
        """The entries of a session, read beside the server."""
        rows = self.query(
            "SELECT l.entry FROM log l JOIN sessions s USING (session) WHERE s.id = ?"
            " ORDER BY l.seq",
            session,
        )
        return [Entry.decode(data) for (data,) in rows]

    def query(self, sql: str, *values: Any) -> list[Any]:
        """Rows of the server's file, read beside it."""
        return query(self.data, sql, *values)


def query(path: Path, sql: str, *values: Any) -> list[Any]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as db:
        return db.execute(sql, values).fetchall()


class ServerProcess:
    """``syncline serve`` as a child process."""

    def __init__(
        self, data: Path, port: int = 0, *, token: str = "", log: Path | None = None
    ) -> None:
        with open(log or os.devnull, "ab") as errors:
            self.child = subprocess.Popen(
                command("serve", "--data", str(data), "--port", str(port)),
                cwd=ROOT,
                env=os.environ | {"SYNCLINE_TOKEN": token},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        assert line.startswith("listening on "), (line, log.read_text() if log else "")
        self.url = line.split()[2]
        self.port = int(self.url.rsplit(":", 1)[1])

    def signal(self, number: int) -> None:
        os.kill(self.child.pid, number)

    def stop(self) -> None:
        """Ask it to end, and see that it does."""
        assert self.child.stdout is not None
        if self.child.poll() is None:
            self.child.terminate()
            assert self.child.wait(10) == 0
        self.child.stdout.close()

    def kill(self) -> None:
        assert self.child.stdout is not None
        self.child.kill()
        self.child.wait(10)
        self.child.stdout.close()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "syncline.cli", *arguments]
