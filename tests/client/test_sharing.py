"""One replica, many hands: threads, processes, and the lease that lets one of them sync."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.client.wire import SECOND, Wire, state_of

from syncline.client import LeaseLost, ReceiptState, Replica, State
from syncline.server import MemoryStore, SyncServer
from syncline.sync import Entry, LeaseHeld, LocalError

THREADS, OPS = 8, 200
SYNCED_S_MAX = 60.0


@pytest.fixture
def server() -> Iterator[SyncServer]:
    with SyncServer(MemoryStore(), port=0) as running:
        yield running


def _log(server: SyncServer) -> list[Entry]:
    rows = server._store.entries("s", 0, 1 << 40, 1 << 40)
    return [Entry.decode(row.entry) for row in rows]


def test_eight_threads_write_to_one_replica_while_it_is_connected(
    folder: Path, server: SyncServer
) -> None:
    receipts: list[list[str]] = [[] for _ in range(THREADS)]
    with Replica(folder / "ann", client_id="ann", durability="normal") as ann:
        session = ann.session("s")
        start = threading.Barrier(THREADS)

        def work(mine: int) -> None:
            start.wait()
            for i in range(OPS):
                receipts[mine].append(session.put("n", f"r{mine}", {"i": i}).id)
                if i % 50 == 0:
                    assert session.get("n", f"r{mine}") == {"i": i}
                    session.append("e", {"by": mine})

        threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
        with ann.connect(server.url) as connection:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(SYNCED_S_MAX)
                assert not thread.is_alive()
            connection.wait_synced(SYNCED_S_MAX)
        assert ann.status().pending == 0
        assert dict(session.records("n")) == {f"r{i}": {"i": OPS - 1} for i in range(THREADS)}
        log = _log(server)
        assert [entry.n for entry in log] == list(range(1, THREADS * (OPS + 4) + 1))
        # Each thread's writes are in the log in the order in which it wrote them.
        place = {entry.receipt_id: entry.seq for entry in log}
        for mine in receipts:
            places = [place[id_] for id_ in mine]
            assert places == sorted(places)


WRITER = """
import sys
from syncline.client import Replica
with Replica(sys.argv[1], durability="normal") as replica:
    session = replica.session("s")
    for i in range(100):
        receipt = session.put("n", sys.argv[2], {"i": i})
    if sys.argv[2] == "last":
        print(receipt.wait(60).value)
"""


def _process(*args: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def test_three_processes_write_to_one_replica_of_which_one_is_connected(
    folder: Path, server: SyncServer
) -> None:
    path = folder / "ann"
    with Replica(path, client_id="ann", durability="normal") as ann:
        session = ann.session("s")
        with ann.connect(server.url) as connection:
            others = [_process(WRITER, path, name) for name in ("first", "last")]
            for i in range(100):
                session.put("n", "mine", {"i": i})
            said = [process.communicate(timeout=SYNCED_S_MAX) for process in others]
            assert [process.returncode for process in others] == [0, 0], said
            # What the other process wrote was settled while it waited, by this one's connection.
            assert said[1][0].strip() == "applied"
            connection.wait_synced(SYNCED_S_MAX)
        assert [entry.n for entry in _log(server)] == list(range(1, 301))
        assert dict(session.records("n")) == {id_: {"i": 99} for id_ in ("first", "last", "mine")}
        assert ann.status().pending == 0


SHORT_LEASE_US, SHORT_RENEWAL_US = 2_000_000, 200_000

HOLDER = f"""
import sys, threading
from syncline.client import Replica, _core, _engine
_core.LEASE_US, _engine.LEASE_RENEWAL_US = {SHORT_LEASE_US}, {SHORT_RENEWAL_US}
replica = Replica(sys.argv[1])
replica.session("s")
connection = replica.connect(sys.argv[2])
connection.wait_synced(60)
print("connected", flush=True)
threading.Event().wait()
"""


@contextmanager
def _holder(path: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    process = _process(HOLDER, path, url)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "connected"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=SYNCED_S_MAX)


def test_while_another_process_syncs_a_second_sync_says_so_and_takes_over_when_it_is_killed(
    folder: Path, server: SyncServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "ann"
    monkeypatch.setattr("syncline.client._link.LEASE_RETRY_S", 0.05)
    monkeypatch.setattr("syncline.client._core.LEASE_US", SHORT_LEASE_US)
    with Replica(path, client_id="ann") as ann:
        ann.session("s")
        with _holder(path, server.url) as holder:
            with pytest.raises(LeaseHeld, match="another process"):
                ann.sync_once(server.url, timeout=0.3)
            receipt = ann.session("s").put("n", "r", {})
            assert receipt.wait(SYNCED_S_MAX) is ReceiptState.APPLIED  # By the holder.
            assert ann.status().connection == "online"
            os.kill(holder.pid, signal.SIGKILL)
            holder.wait(SYNCED_S_MAX)
            receipt = ann.session("s").put("n", "r", {"x": 2})
            with ann.connect(server.url) as connection:
                connection.wait_synced(SYNCED_S_MAX)
            assert receipt.state is ReceiptState.APPLIED
        assert [entry.n for entry in _log(server)] == [1, 2]


def test_a_holder_that_was_stopped_for_longer_than_its_lease_writes_no_more(wire: Wire) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    line = wire.connect(ann)
    line.deliver()
    bob = wire.open("bob")
    bob.session("s").put("n", "r", {"x": 1})
    bob_line = wire.connect(bob)
    bob_line.deliver()
    # Stopped, as by a debugger or a closed lid: another process takes the lease meanwhile.
    wire.now += 10 * SECOND
    second = wire.open("ann")
    other = wire.connect(second)
    other.deliver()
    assert second.session("s").get("n", "r") == {"x": 1}
    held = list(line.to_client)
    assert line.ended is not None or held
    seq = second.status().sessions[0].seq
    for act in (
        lambda: ann._core.apply_entries("s", 2, b"", []),
        lambda: ann._core.refused("s", 1, 3001, "", {}),
        lambda: ann._core.become_new_client("a test"),
        lambda: ann._core.begin_connection(),
        lambda: ann._core.renew_lease(),
        lambda: ann._core.pause("s", 3008, ""),
    ):
        with pytest.raises(LeaseLost):
            act()
    assert ann.client_id == "ann" and second.status().sessions[0].seq == seq
    # Writing is for everybody, at all times.
    receipt = session.put("n", "q", {})
    second._core.on_local_write = None
    other.do(lambda: other.engine.local_change(wire.now))
    other.deliver()
    assert receipt.state is ReceiptState.APPLIED
    other.cut()
    assert state_of(second, "s") == wire.state("s")


def test_a_lease_that_a_wrong_clock_wrote_for_years_holds_nobody(wire: Wire) -> None:
    ann = wire.open("ann", skew=10**15)
    assert ann._core.acquire_lease()
    assert wire.open("ann")._core.acquire_lease()


def test_a_replica_has_one_connection_at_a_time(folder: Path, server: SyncServer) -> None:
    with Replica(folder / "ann", client_id="ann") as ann:
        ann.session("s")
        with ann.connect(server.url) as connection:
            with pytest.raises(LocalError, match="connected already"):
                ann.connect(server.url)
            with pytest.raises(LocalError, match="connected"):
                ann.sync_once(server.url)
            connection.wait_synced(SYNCED_S_MAX)
        assert connection.state is State.CLOSED
        ann.sync_once(server.url)
