"""The heart's figures: offline writes, the drain, the first sync; each as a ratio within one run.

    python -m benchmarks.heart [--records N] [--runs N] [--json]

Real processes for both servers, real files (``synchronous=FULL``), loopback; records of six fields,
about 200 bytes as JSON. The floor (``benchmarks/floor.py``) runs in the same rounds, interleaved,
so that a slow moment of the machine hits both. Exit code 1 when an end state is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from syncline.client import Replica

from . import floor

SINGLE_WRITES = 500
"""Writes with a commit each; they are bound by the disk, and need not be many."""


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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A server process, from its first line on until the block ends."""
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit(f"the server did not start: {' '.join(words)}")
        yield process
    finally:
        process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def one_round(folder: Path, records: int) -> dict[str, float]:
    """Every figure once, ours and the floor's in turn."""
    ours_port, floor_port = free_port(), free_port()
    figures: dict[str, float] = {}
    with ExitStack() as stack:
        server = stack.enter_context(
            running(
                "-m", "syncline.cli", "serve", "--data", f"{folder}/s.db", "--port", str(ours_port)
            )
        )
        floor_data = f"{folder}/floor-s.db"
        stack.enter_context(
            running("-m", "benchmarks.floor", "--port", str(floor_port), "--data", floor_data)
        )
        url, floor_url = f"ws://127.0.0.1:{ours_port}", f"ws://127.0.0.1:{floor_port}"
        a = stack.enter_context(Replica(folder / "a.db", client_id="a"))
        b = stack.enter_context(Replica(folder / "b.db", client_id="b"))
        floor_a, floor_b = (floor.open_file(folder / f"floor-{name}.db") for name in "ab")
        stack.callback(floor_a.close)
        stack.callback(floor_b.close)
        session = a.create_session("bench")

        def write_singly() -> None:
            for number in range(SINGLE_WRITES):
                session.put("notes", f"single-{number}", fields_of(number))

        def floor_write_singly() -> None:
            for number in range(SINGLE_WRITES):
                floor.write(floor_a, f"single-{number}", number, fields_of(number))

        def write_in_batch() -> None:
            with a.batch():
                for number in range(records):
                    session.put("notes", f"r{number}", fields_of(number))

        figures["write_s"] = timed(write_singly) / SINGLE_WRITES
        figures["floor_write_s"] = timed(floor_write_singly) / SINGLE_WRITES
        figures["batch_s"] = timed(write_in_batch) / records
        for number in range(records):
            row = (f"r{number}", number, floor.encoded(fields_of(number)))
            floor_a.execute("INSERT INTO outbox (id, at, body) VALUES (?, ?, ?)", row)
        figures["drain_s"] = timed(lambda: a.sync_once(url, timeout=None))
        figures["floor_drain_s"] = timed(lambda: asyncio.run(floor.drain(floor_url, floor_a)))
        figures["fetch_s"] = timed(lambda: b.sync_once(url, timeout=None))
        figures["floor_fetch_s"] = timed(lambda: asyncio.run(floor.fetch(floor_url, floor_b)))
        figures["client_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        figures["server_mib"] = _memory_mib(server.pid)
        _check(session.count("notes"), b.session(session.id).count("notes"), records)
        _check(floor_b.execute("SELECT count(*) FROM records").fetchone()[0], None, records)
    return figures


def _memory_mib(pid: int) -> float:
    """The peak memory of a process, where the system tells; 0 elsewhere."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def _check(first: int, second: int | None, records: int) -> None:
    wanted = records + SINGLE_WRITES
    if first != wanted or second not in (None, wanted):
        raise SystemExit(f"wrong end state: {first} and {second} records, not {wanted}")


def measure(records: int, runs: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Medians over the runs, for ``records`` and for four times as many."""
    result: dict[str, Any] = {"records": records, "runs": runs, "sqlite": sqlite3.sqlite_version}
    for size in (records, records * 4):
        rounds = []
        for run in range(runs):
            with tempfile.TemporaryDirectory() as folder:
                rounds.append(one_round(Path(folder), size))
            say(f"{size} records, round {run + 1} of {runs}")
        medians = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
        spread = {
            key: (min(r[key] for r in rounds), max(r[key] for r in rounds)) for key in medians
        }
        result[f"of_{size}"] = {
            "offline_ops_s": 1 / medians["write_s"],
            "offline_batch_ops_s": 1 / medians["batch_s"],
            "drain_ops_s": (size + SINGLE_WRITES) / medians["drain_s"],
            "fetch_records_s": (size + SINGLE_WRITES) / medians["fetch_s"],
            "write_to_floor": medians["write_s"] / medians["floor_write_s"],
            "drain_to_floor": medians["drain_s"] / medians["floor_drain_s"],
            "fetch_to_floor": medians["fetch_s"] / medians["floor_fetch_s"],
            "client_mib": medians["client_mib"],
            "server_mib": medians["server_mib"],
            "seconds": {key: [medians[key], *spread[key]] for key in medians if key.endswith("_s")},
        }
    small, large = result[f"of_{records}"], result[f"of_{records * 4}"]
    result["growth_for_four_times_as_many"] = {
        "drain_time": 4 * small["drain_ops_s"] / large["drain_ops_s"],
        "fetch_time": 4 * small["fetch_records_s"] / large["fetch_records_s"],
        "server_memory": large["server_mib"] / small["server_mib"],
    }
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=2_500, help="and four times as many")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    result = measure(args.records, args.runs, lambda line: print(line, file=sys.stderr))
    if args.json:
        print(json.dumps(result))
        return 0
    for name, value in result.items():
        if not isinstance(value, dict):
            print(f"{name}: {value}")
            continue
        print(name)
        for key, figure in value.items():
            if not isinstance(figure, dict):
                print(f"  {key:24} {figure:,.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
