"""kill -9 at random moments under load, and what must be true after each.

A ``Life`` is one folder: a server and two writers, each a real process, killed and started again
round after round: a writer, both, the server, or all of them. Each writer keeps a diary outside of
what is tested. After every kill the files are looked at as they lie there: every write that
returned is in the writer's replica, every write that a writer saw in the log is in the server's
log, which is dense and never changes behind anybody. At the end of a life all come to rest: every
write is in the log exactly once with the content that was written, and the verifier, which shares
no code with what wrote the files, finds nothing.
"""

from __future__ import annotations

import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.system.support import eventually, now_us, query

from syncline.cli.verify import compare_files, verify_file
from syncline.client import Replica
from syncline.sync import Entry

from .nursery import LEASE_US, Nursery

WRITERS = ("ann", "cyd")
VICTIMS = ("client", "clients", "server", "both")
"""One writer, both writers, the server, or all three."""
LIFE_ROUNDS = 100
MOMENT_S_MAX = 0.08
START_S_MAX = 60.0


@dataclass(slots=True)
class Tally:
    """What happened; the four lists are what must stay empty."""

    rounds: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    returned: int = 0
    settled: int = 0
    entries: int = 0
    untold: int = 0
    """Writes that are in the log and whose author was killed before it could say so."""
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    holes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def findings(self) -> list[str]:
        return self.lost + self.doubled + self.holes + self.problems


class Writer:
    """A writer's files, its process while it lives, and what its diary says."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.path = folder / f"{name}.db"
        self.diary = folder / f"{name}.diary"
        self.pid = 0
        self.lives = 0
        self.told: dict[str, str] = {}
        self.fresh: list[str] = []
        self.settled: set[str] = set()
        self._read_to = 0

    def read(self) -> None:
        """Read on in the diary."""
        if not self.diary.exists():
            return
        with open(self.diary, "rb") as file:
            file.seek(self._read_to)
            data = file.read()
        whole, _, _ = data.rpartition(b"\n")
        self._read_to += len(whole) + 1 if whole else 0
        for line in whole.splitlines():
            if not line.endswith(b"}"):
                continue  # Its writer was killed while it told.
            words = json.loads(line)
            if "wrote" in words:
                self.told[words["wrote"]] = words["v"]
                self.fresh.append(words["wrote"])
            else:
                self.settled.add(words["settled"])

    def size(self) -> int:
        return self.diary.stat().st_size if self.diary.exists() else 0


def free_port() -> int:
    """A port that nobody listens on, so that a server can come back to it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Life:
    """See the module."""

    def __init__(self, folder: Path, seed: int, nursery: Nursery, tally: Tally) -> None:
        self._folder = folder
        self._rng = random.Random(seed)
        self._nursery = nursery
        self._tally = tally
        self._data = folder / "server.db"
        self._port = free_port()
        self._url = f"ws://127.0.0.1:{self._port}"
        self._server = 0
        self._writers = [Writer(folder, name) for name in WRITERS]
        self._salts: dict[str, int] = {}
        self._head: tuple[int, bytes] | None = None

    def play(self, rounds: int, after_round: Callable[[], object] = lambda: None) -> None:
        """So many rounds, and the rest at the end."""
        for _ in range(rounds):
            self._round()
            self._tally.rounds += 1
            after_round()
        self._come_to_rest()

    def _round(self) -> None:
        at_work = self._rng.random() < 0.9
        self._start_all(at_work=at_work)
        if at_work and self._rng.random() < 0.5:
            self._until_synced()
        victims = self._rng.choice(VICTIMS)
        threading.Event().wait(self._rng.uniform(0, MOMENT_S_MAX))
        writers = {
            "client": [self._rng.choice(self._writers)],
            "clients": self._writers,
            "server": [],
            "both": self._writers,
        }[victims]
        pids = [writer.pid for writer in writers]
        if victims in ("server", "both"):
            pids.append(self._server)
            self._server = 0
        self._rng.shuffle(pids)
        self._nursery.kill(*pids)
        self._tally.kills[victims] += 1
        for writer in self._writers:
            writer.read()
        for writer in writers:
            writer.pid = 0
            self._check_replica(writer)
        self._check_log()

    def _start_all(self, *, at_work: bool = True) -> None:
        """Start who does not run; ``at_work``: and wait until everybody has written again."""
        if not self._server:
            self._server = self._nursery.start("server", path=str(self._data), port=self._port)
            eventually(self._answers, START_S_MAX)
        sizes = [writer.size() for writer in self._writers]
        for writer in self._writers:
            if not writer.pid:
                writer.lives += 1
                writer.pid = self._nursery.start(
                    "writer",
                    path=str(writer.path),
                    diary=str(writer.diary),
                    life=writer.lives,
                    url=self._url,
                )
        if not at_work:
            return
        eventually(
            lambda: all(w.size() > size for w, size in zip(self._writers, sizes, strict=True)),
            START_S_MAX,
        )

    def _until_synced(self) -> None:
        """Wait until each writer has seen one more write of its own in the log."""
        counts = [len(writer.settled) for writer in self._writers]

        def grown() -> bool:
            for writer in self._writers:
                writer.read()
            return all(
                len(w.settled) > count for w, count in zip(self._writers, counts, strict=True)
            )

        eventually(grown, START_S_MAX)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), 1).close()
        except OSError:
            return False
        return True

    # After each kill, the files as they lie there.

    def _check_replica(self, writer: Writer) -> None:
        """Every write that returned is in the file."""
        if not writer.fresh:
            return  # Perhaps it was killed before there was a file.
        known = {
            salt.hex()
            for table in ("syncline_outbox", "syncline_entries", "syncline_refused")
            for (salt,) in query(writer.path, f"SELECT salt FROM {table} WHERE salt IS NOT NULL")
        }
        lost = [id_ for id_ in writer.fresh if id_ not in known]
        self._tally.lost += [f"{writer.name}: {id_} returned and is in no table" for id_ in lost]
        writer.fresh.clear()

    def _check_log(self) -> None:
        """The log goes on from where it was, dense, each op once, and holds what was seen in it."""
        after = 0 if self._head is None else self._head[0]
        rows = query(
            self._data, "SELECT seq, hash, salt FROM log WHERE seq >= ? ORDER BY seq", after
        )
        if self._head is not None:
            if not rows or (rows[0][0], bytes(rows[0][1])) != self._head:
                self._tally.holes.append(f"what stood at {after} has gone or changed")
                return
            rows = rows[1:]
        for place, (seq, hash_, salt) in enumerate(rows, after + 1):
            if seq != place:
                self._tally.holes.append(f"entry {seq} stands at {place}")
            if salt.hex() in self._salts:
                self._tally.doubled.append(f"{salt.hex()} at {self._salts[salt.hex()]} and {seq}")
            self._salts[salt.hex()] = seq
            self._head = (seq, bytes(hash_))
        for writer in self._writers:
            for id_ in writer.settled - self._salts.keys():
                self._tally.lost.append(f"{writer.name}: {id_} was seen in the log and is gone")

    # The end of a life.

    def _come_to_rest(self) -> None:
        """All run, end in order, and everything is compared with the diaries."""
        self._start_all()
        for writer in self._writers:
            self._nursery.end(writer.pid)
            writer.read()
        reader = self._folder / "reader.db"
        for path, lives in [(w.path, w.lives) for w in self._writers] + [(reader, 0)]:
            later = (lives + 1) * LEASE_US
            with Replica(path, clock=lambda later=later: now_us() + later) as replica:  # type: ignore[misc]
                replica.sync_once(self._url)
        self._nursery.end(self._server)
        self._check_log()
        paths = [*(writer.path for writer in self._writers), reader]
        for path in (self._data, *paths):
            self._tally.problems += [f"{path.name}: {p}" for p in verify_file(path).all_problems()]
        self._tally.problems += [str(problem) for problem in compare_files(self._data, paths)]
        self._compare_with_diaries()

    def _compare_with_diaries(self) -> None:
        written = dict(self._written())
        tally = self._tally
        for writer in self._writers:
            self._check_replica(writer)
            for id_, value in writer.told.items():
                if id_ not in written:
                    tally.lost.append(f"{writer.name}: {id_} returned and is not in the log")
                elif written[id_] != value:
                    tally.lost.append(f"{writer.name}: {id_} has other content in the log")
            for table in ("syncline_outbox", "syncline_refused"):
                ((count,),) = query(writer.path, f"SELECT count(*) FROM {table}")
                if count:
                    tally.problems.append(f"{writer.name}: {count} rows are left in {table}")
            tally.returned += len(writer.told)
            tally.settled += len(writer.settled)
        told = {id_ for writer in self._writers for id_ in writer.told}
        tally.untold += len(written.keys() - told)
        tally.entries += len(self._salts)

    def _written(self) -> Iterator[tuple[str, Any]]:
        """Each op of the log by its receipt, with the value that it wrote."""
        for (data,) in query(self._data, "SELECT entry FROM log ORDER BY seq"):
            entry = Entry.decode(data)
            change: Any = entry.read()[0].change
            fields = getattr(change, "fields", None) or change.payload
            yield entry.receipt_id, fields["v"]
