"""Clients that die in the middle: real processes, killed at a chosen statement, call or moment.

``Crasher`` starts one process that has everything imported, and forks a child of it per run, which
takes milliseconds. The child opens a replica, does its job, tells of every write that returned,
and is killed by SIGKILL (or by SIGALRM, which nobody handles, when the moment is chosen by time).
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from syncline.cli.verify import verify_file
from syncline.client import Replica
from syncline.client._core import Core

from .interrupting import Interrupts
from .later import become_later
from .support import ROOT, SESSION, now_us, query

LEASE_US = 11_000_000
"""A killed holder's lease outlives it by ten seconds: whoever comes next has a later clock."""


@dataclass
class Life:
    """One run: what it told before its end, and the signal that ended it (0: it came through)."""

    killed_by: int
    told: list[Any] = field(default_factory=list)


def assert_holds(path: Path, told: list[str]) -> None:
    """Rows, outbox, numbers and hashes agree, and every write that returned is there."""
    assert verify_file(path).all_problems() == []
    known = {
        salt.hex()
        for table in ("syncline_outbox", "syncline_entries", "syncline_refused")
        for (salt,) in query(path, f"SELECT salt FROM {table} WHERE salt IS NOT NULL")
    }
    assert set(told) - known == set()


class Crasher:
    """``with Crasher() as crasher: crasher.run("write", path, at_statement=7)``."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.crashing"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._runs = 0
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait(20) == 0
        self._process.stdout.close()

    def later(self) -> int:
        """Microseconds to add to the clock, so that the leases of the dead have run out."""
        return (self._runs + 1) * LEASE_US

    def run(self, job: str, path: Path, **options: Any) -> Life:
        """Do a job on a replica. One of ``at_statement``, ``at_call``, ``after_s`` may kill it."""
        self._runs += 1
        order = {"job": job, "path": str(path), "clock_us": self._runs * LEASE_US, **options}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        life = Life(0)
        for line in self._process.stdout:
            said = json.loads(line)
            if isinstance(said, dict):
                life.killed_by = said["killed_by"]
                return life
            life.told.append(said[0])
        raise AssertionError("the process that forks has ended")


# In the process that forks, and in its children.


class _Fatal(sqlite3.Connection):
    """Kills its process before a chosen statement."""

    left = -1

    def execute(self, *args: Any) -> sqlite3.Cursor:
        _count_down()
        return super().execute(*args)

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        _count_down()
        return super().executemany(*args)


def _count_down() -> None:
    if _Fatal.left == 0:
        _die()
    _Fatal.left -= 1


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        path, timeout=30, isolation_level=None, check_same_thread=False, factory=_Fatal
    )


def _tell(what: object) -> None:
    os.write(1, json.dumps([what]).encode() + b"\n")


def _write(replica: Replica, order: dict[str, Any]) -> None:
    """Ops of every kind, each told of when it has returned."""
    session = replica.session(SESSION)
    rng = random.Random(order["seed"])
    for _ in range(order.get("ops", 4)):
        key = f"r{rng.randrange(12)}"
        kind = rng.randrange(5)
        if kind == 0:
            receipt = session.delete("notes", key)
        elif kind == 1:
            with session.transaction() as receipt:
                for other in range(3):
                    session.put("notes", f"r{(int(key[1:]) + other) % 12}", {"many": other})
                session.append("made", {"key": key})
        elif kind == 2 and session.get("notes", key) is not None:
            receipt = session.patch("notes", key, {"seed": order["seed"]})
        else:
            receipt = session.put("notes", key, {"seed": order["seed"], "text": "x" * 50})
        _tell(receipt.id)


def _sync(replica: Replica, order: dict[str, Any]) -> None:
    replica.sync_once(order["url"], timeout=30)
    _tell("synced")


def _both(replica: Replica, order: dict[str, Any]) -> None:
    """Writes while the connection is up: pushes, replies and pulls run beside them."""
    with replica.connect(order["url"]) as connection:
        _write(replica, order)
        connection.wait_synced(30)
    _tell("synced")


def _survive(replica: Replica, order: dict[str, Any]) -> None:
    """Interrupted again and again, this process goes on with the same objects."""
    session = replica.session(SESSION)
    interrupts = Interrupts()
    rng = random.Random(order["seed"])
    with replica.connect(order["url"]) as connection:
        for i in range(order["rounds"]):
            try:
                interrupts.begin(rng.uniform(0.0005, 0.01))
                while True:
                    with session.transaction() as receipt:
                        session.put("notes", f"r{rng.randrange(12)}", {"round": i})
                        session.append("made", {"round": i})
                    _tell(receipt.id)
                    dict(session.records("notes"))
            except KeyboardInterrupt:
                interrupts.end()
        connection.wait_synced(30)
    _tell("synced")


def _leave(order: dict[str, Any]) -> None:
    """From the opening to the close, an interrupt ends it, and a second one ends that."""
    interrupts = Interrupts()
    later = order["clock_us"]
    path = Path(order["path"])
    try:
        interrupts.begin(order["first_s"], order["again_s"])
        with (
            Replica(path, client_id=path.stem, clock=lambda: now_us() + later) as replica,
            replica.connect(order["url"]),
        ):
            session = replica.session(SESSION)
            while True:
                _tell(session.put("notes", f"r{random.randrange(12)}", {"at": now_us()}).id)
    except KeyboardInterrupt:
        interrupts.end()
    _tell("left")


JOBS: dict[str, Callable[[Replica, dict[str, Any]], None]] = {
    "write": _write,
    "sync": _sync,
    "both": _both,
    "survive": _survive,
    "open": lambda replica, order: None,
}


def _live(order: dict[str, Any]) -> None:
    if order["job"] == "leave":
        _leave(order)
        return
    if order.get("later"):
        become_later()
    if order.get("at_call"):
        setattr(Core, order["at_call"], lambda *args, **kwargs: _die())
    later = order["clock_us"]
    path = Path(order["path"])
    _Fatal.left = order.get("at_opening_statement", -1)
    with Replica(
        path, client_id=path.stem, connection_factory=_connect, clock=lambda: now_us() + later
    ) as replica:
        replica.session(SESSION)
        _Fatal.left = order.get("at_statement", -1)
        if order.get("after_s"):
            signal.setitimer(signal.ITIMER_REAL, order["after_s"])
        JOBS[order["job"]](replica, order)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _Fatal.left = -1


def _main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                _live(json.loads(line))
            except BaseException as error:
                _tell(f"{type(error).__name__}: {error}")
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or status == 0, f"a child failed: {status}"
        died = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        os.write(1, json.dumps({"killed_by": died}).encode() + b"\n")


if __name__ == "__main__":
    _main()
