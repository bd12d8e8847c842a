"""Real processes that start in milliseconds, to be killed: servers and writers under load.

``Nursery`` starts one process that has everything imported and forks a child per start. A
**writer** opens its replica, stays connected, and writes as fast as it can; of each write that has
returned, and of each that it saw in the log, it appends a line to a file of its own, which is what
survives it. A **server** is ``serve_forever`` on a file. SIGTERM ends either in order: a writer
then syncs first.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from tests.system.support import ROOT, now_us

from syncline.client import ReceiptState, Replica
from syncline.client._link import State
from syncline.server import SqliteStore, SyncServer
from syncline.sync import TimedOut

SESSION = "load"
LEASE_US = 11_000_000
"""A killed holder's lease outlives it by ten seconds: whoever comes next has a later clock."""
IN_LOG = frozenset({ReceiptState.APPLIED, ReceiptState.MERGED, ReceiptState.WON, ReceiptState.LOST})


class Nursery:
    """``with Nursery() as nursery: pid = nursery.start("writer", path=...)``."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.nursery"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._alive: set[int] = set()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pid in list(self._alive):
            self.kill(pid)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()

    def start(self, what: str, **options: Any) -> int:
        """Start a child; its process id."""
        pid = int(self._ask({"start": what, **options}))
        self._alive.add(pid)
        return pid

    def kill(self, *pids: int) -> None:
        """SIGKILL, all at one moment, and nothing else may have ended any of them."""
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            status = self.wait(pid)
            assert status == -signal.SIGKILL, f"a child had ended by itself: {status}"

    def end(self, pid: int) -> None:
        """SIGTERM, and see that it ends well."""
        os.kill(pid, signal.SIGTERM)
        status = self.wait(pid)
        assert status == 0, f"a child ended with {status}"

    def wait(self, pid: int) -> int:
        """Wait for the end of a child: its exit code, or minus the signal that ended it."""
        self._alive.discard(pid)
        return self._ask({"reap": pid})

    def _ask(self, order: dict[str, Any]) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


# In the nursery, and in its children.


def _write_for_ever(order: dict[str, Any]) -> None:
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))
    path, later = Path(order["path"]), order["life"] * LEASE_US
    diary = os.open(order["diary"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    rng = random.Random(f"{path.stem} {order['life']}")

    lead = b"\n"  # The last line of the life before may have been cut off by its end.

    def note(**words: object) -> None:
        nonlocal lead
        os.write(diary, lead + json.dumps(words).encode() + b"\n")
        lead = b""

    with Replica(path, client_id=path.stem, clock=lambda: now_us() + later) as replica:
        session = replica.session(SESSION)
        with replica.connect(order["url"]) as connection:
            written = 0
            while not ending:
                written += 1
                key = f"r{rng.randrange(40)}"
                value = f"{path.stem} {order['life']} {written} " + "x" * rng.choice((5, 50, 3000))
                kind = rng.randrange(8)
                if kind == 0:
                    receipt = session.append("said", {"v": value})
                elif kind == 1:
                    with session.transaction() as receipt:
                        session.put("notes", key, {"v": value})
                        session.put("notes", f"{key} too", {"v": value})
                elif kind <= 4 and session.get("notes", key) is not None:
                    receipt = session.patch("notes", key, {"v": value})
                else:
                    receipt = session.put("notes", key, {"v": value})
                note(wrote=receipt.id, v=value)
                if written % 6 == 0:
                    if connection.state is State.OFFLINE:
                        connection.poke()
                    with contextlib.suppress(TimedOut):
                        receipt.wait(0.05)
                    if receipt.state in IN_LOG:
                        note(settled=receipt.id)
            connection.poke()
            connection.wait_synced(60)


def _serve(order: dict[str, Any]) -> None:
    SyncServer(SqliteStore(order["path"]), port=order["port"]).serve_forever()


def _live(order: dict[str, Any]) -> NoReturn:
    code = 1
    try:
        {"writer": _write_for_ever, "server": _serve}[order["start"]](order)
        code = 0
    except BaseException as error:
        os.write(2, f"{order['start']}: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def _main() -> None:
    # A terminal's interrupt is for whoever started this; the children end with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if "reap" in order:
            _, status = os.waitpid(order["reap"], 0)
            answer = os.waitstatus_to_exitcode(status)
            children.discard(order["reap"])
        else:
            answer = os.fork()
            if answer == 0:
                # The pipes are between the nursery and whoever started it.
                devnull = os.open(os.devnull, os.O_RDWR)
                os.dup2(devnull, 0)
                os.dup2(devnull, 1)
                _live(order)
            children.add(answer)
        os.write(1, f"{answer}\n".encode())
    # Whoever started them is gone.
    for child in children:
        os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    _main()
