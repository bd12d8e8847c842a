"""CPU time per op of both ends, in one process without a network: where to look with a profiler.

    python -m benchmarks.cpu [--records N] [--profile SIDE] [--lines N]

The two state machines hand each other bytes, on real files. Times are of ``time.process_time``, so
that other work on the machine counts little; what stands beside each is the same job as bare
``sqlite3`` in the same process. ``--profile client``, ``server`` or ``write`` prints where the time
goes.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack

from syncline.client import Replica
from syncline.client._engine import ClientEngine
from syncline.server._engine import ServerEngine
from syncline.server._peer import Connected, Consumed, Drained, Input, Received, Send
from syncline.server._sqlite_store import SqliteStore


def fields_of(number: int) -> dict[str, Any]:
    """A record of six fields, about 200 bytes as JSON."""
    return {
        "id": f"record-{number:08}",
        "title": f"{number:08} " + "t" * 31,
        "body": "b" * 80,
        "done": number % 2 == 0,
        "priority": number % 5,
        "updatedAt": 1_760_000_000_000 + number,
    }


class Bare:
    """The same two rows a write with ``sqlite3`` alone."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=FULL")
        self.db.execute("CREATE TABLE records (id TEXT PRIMARY KEY, at INT, body BLOB)")
        self.db.execute("CREATE TABLE outbox (n INTEGER PRIMARY KEY, id TEXT, at INT, body BLOB)")

    def write(self, numbers: Iterable[int]) -> None:
        """One commit for all of them."""
        self.db.execute("BEGIN IMMEDIATE")
        for number in numbers:
            row = (f"r{number}", number, msgpack.packb(fields_of(number)))
            self.db.execute(
                "INSERT INTO records VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
                " at = excluded.at, body = excluded.body WHERE excluded.at > at",
                row,
            )
            self.db.execute("INSERT INTO outbox (id, at, body) VALUES (?, ?, ?)", row)
        self.db.execute("COMMIT")


class Clock:
    """CPU time, summed up by side; one side may be profiled."""

    def __init__(self, profiled: str | None) -> None:
        self.seconds: dict[str, float] = {}
        self._profiled = profiled
        self.profile = cProfile.Profile()

    @contextmanager
    def on(self, side: str) -> Iterator[None]:
        began = time.process_time()
        if side == self._profiled:
            self.profile.enable()
        try:
            yield
        finally:
            self.profile.disable()
            spent = time.process_time() - began
            self.seconds[side] = self.seconds.get(side, 0.0) + spent


class Wire:
    """One replica's engine and the server's, bytes going to and fro at once."""

    def __init__(self, clock: Clock, server: ServerEngine, replica: Replica, conn: int) -> None:
        self._clock = clock
        self._server = server
        self._core = replica._core
        self._conn = conn
        self._core.acquire_lease()
        self._client = ClientEngine(self._core, random_bytes=os.urandom)

    def sync(self) -> None:
        """Until nothing moves any more."""
        inputs: list[Input] = [Connected(self._conn, "here")]
        with self._clock.on("client"):
            self._client.start(0)
        while True:
            with self._clock.on("client"):
                sent = self._client.take_output()
            inputs += [Received(self._conn, data) for data in sent]
            if not inputs:
                break
            with self._clock.on("server"):
                outputs = self._server.process(inputs, time.time_ns() // 1000)
            inputs = []
            for output in outputs:
                if isinstance(output, Send):
                    with self._clock.on("client"):
                        self._client.receive(output.data, 0)
                    inputs.append(Drained(self._conn, len(output.data)))
            if not any(isinstance(item, Send | Consumed) for item in outputs):
                break
        self._core.release_lease()


def measured(clock: Clock, call: Callable[[], None]) -> dict[str, float]:
    clock.seconds = {}
    call()
    return clock.seconds


def _report(what: str, count: int, seconds: dict[str, float]) -> None:
    each = "  ".join(f"{side} {spent / count * 1e6:7.2f}" for side, spent in seconds.items())
    print(f"{what:12} us per record:  {each}")


def run(folder: Path, records: int, clock: Clock) -> None:
    store = SqliteStore(folder / "s.db")
    server = ServerEngine(store)
    with Replica(folder / "a.db", client_id="a") as a, Replica(folder / "b.db") as b:
        session = a.create_session("cpu")
        bare = Bare(folder / "bare.db")

        def single() -> None:
            for number in range(500):
                with clock.on("write"):
                    session.put("notes", f"single-{number}", fields_of(number))
                with clock.on("bare"):
                    bare.write([records + number])

        def batch() -> None:
            with clock.on("write"), a.batch():
                for number in range(records):
                    session.put("notes", f"r{number}", fields_of(number))
            with clock.on("bare"):
                bare.write(range(records))

        _report("single", 500, measured(clock, single))
        _report("batch", records, measured(clock, batch))
        _report("drain", records + 500, measured(clock, Wire(clock, server, a, 1).sync))
        _report("first sync", records + 500, measured(clock, Wire(clock, server, b, 2).sync))
        assert b.session(session.id).count("notes") == records + 500
        assert not b._core.pending_count(None) and not a._core.pending_count(None)
        bare.db.close()
    store.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--profile", choices=["client", "server", "write"])
    parser.add_argument("--lines", type=int, default=40, help="of the profile")
    args = parser.parse_args()
    clock = Clock(args.profile)
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), args.records, clock)
    if args.profile:
        pstats.Stats(clock.profile).sort_stats("tottime").print_stats(args.lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
