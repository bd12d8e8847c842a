"""Whatever dies, at whatever moment: a write is stored whole or not at all, and says which."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.client.dying import commits_fail, stop_failing, watched, write
from tests.client.wire import Wire, state_of

from syncline.client import Receipt, ReceiptState, Replica, Session
from syncline.sync import DiskFull, LocalError, WriteUnknown

ROOT = Path(__file__).parents[2]


def _before(path: Path) -> None:
    """A replica with something in it, all of it in the one file."""
    with Replica(path, client_id="ann") as replica:
        session = replica.session("s")
        for id_ in ("old", "other", "gone"):
            session.put("n", id_, {"x": 1})


def _looks(replica: Replica) -> tuple[object, ...]:
    session = replica.session("s")
    return (
        [(op.n, op.changes) for op in session.pending()],
        {name: list(session.records(name)) for name in session.collections()},
        [event.payload for event in session.events()],
        {
            name: [{**row, "$updated_at": None} for row in replica.db[name].rows]
            for name in replica.db.view_names()
        },
    )


@pytest.mark.parametrize("what", ["op", "batch"])
def test_a_process_killed_at_any_statement_of_a_write_leaves_all_of_it_or_nothing(
    folder: Path, what: str
) -> None:
    source = folder / "source"
    _before(source)
    killed = subprocess.run(
        [sys.executable, "-m", "tests.client.dying", source, folder, what],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert killed.returncode == 0, killed.stderr
    count = int(killed.stdout)
    assert count > 5
    with Replica(source) as replica:
        nothing = _looks(replica)
        write(replica.session("s"), what)
        everything = _looks(replica)
    seen = []
    for at in range(1, count + 1):
        with Replica(folder / f"killed-{at}") as replica:
            looks = _looks(replica)
            assert looks in (nothing, everything), at
            seen.append(looks == everything)
            receipt = replica.session("s").put("n", "next", {})
            numbers = [op.n for op in replica.session("s").pending()]
            assert numbers == list(range(1, len(numbers) + 1))
            assert receipt.state is ReceiptState.QUEUED
    assert seen == [False] * (count - 1) + [True]


def _watched(folder: Path) -> tuple[Replica, Session]:
    replica = Replica(folder / "ann", client_id="ann", connection_factory=watched)
    session = replica.session("s")
    session.put("n", "r", {"x": 1})
    return replica, session


def test_a_commit_that_did_not_answer_but_was_durable_is_a_write_like_any_other(
    folder: Path,
) -> None:
    replica, session = _watched(folder)
    with replica:
        commits_fail(replica, committed=True)
        receipt = session.put("n", "r", {"x": 2})
        assert receipt.state is ReceiptState.QUEUED
        assert session.get("n", "r") == {"x": 2}
        again = session.put("n", "r", {"x": 3})
        assert [op.receipt.id for op in session.pending()][1:] == [receipt.id, again.id]


def test_a_commit_that_failed_stores_nothing_says_so_and_its_number_goes_to_the_next_write(
    folder: Path,
) -> None:
    replica, session = _watched(folder)
    with replica:
        commits_fail(replica, committed=False)
        told: list[object] = []
        session.watch(told.append)
        with pytest.raises(DiskFull, match="could not be written"):
            session.put("n", "r", {"x": 2})
        assert session.get("n", "r") == {"x": 1} and told == []
        receipt = session.put("n", "r", {"x": 3})
        assert [(op.n, op.receipt.id) for op in session.pending()][1:] == [(2, receipt.id)]


@pytest.mark.parametrize("committed", [False, True])
def test_a_batch_whose_commit_did_not_answer_is_stored_as_a_whole_or_not(
    folder: Path, committed: bool
) -> None:
    replica, session = _watched(folder)
    with replica:
        commits_fail(replica, committed=committed)
        receipts: list[Receipt] = []

        def batch() -> None:
            with replica.batch():
                receipts.extend(session.put("n", f"r{i}", {}) for i in range(3))
                receipts.append(replica.session("t").append("e", {}))

        if committed:
            batch()
            assert [r.state for r in receipts] == [ReceiptState.QUEUED] * 4
        else:
            with pytest.raises(DiskFull):
                batch()
            assert session.count("n") == 1
            assert len(session.pending()) == 1


def test_a_file_that_cannot_be_read_back_after_a_commit_is_an_unknown_write_and_says_so(
    folder: Path,
) -> None:
    replica, session = _watched(folder)
    commits_fail(replica, committed=True)

    def gone(path: Path, /) -> sqlite3.Connection:
        raise sqlite3.OperationalError("unable to open database file")

    works = replica._core.database._factory
    replica._core.database._factory = gone
    with pytest.raises(WriteUnknown):
        session.put("n", "r", {"x": 2})
    with pytest.raises(sqlite3.OperationalError):
        session.get("n", "r")
    # Once the file is back, the same replica goes on with what is in it.
    replica._core.database._factory = works
    assert session.get("n", "r") == {"x": 2}
    session.put("n", "q", {})
    assert [op.n for op in session.pending()] == [1, 2, 3]
    replica.close()
    with Replica(folder / "ann") as again:
        assert again.session("s").get("n", "r") == {"x": 2}


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("which", range(1, 9))
def test_a_commit_that_does_not_answer_while_syncing_costs_a_connection_and_nothing_else(
    wire: Wire, committed: bool, which: int
) -> None:
    bob = wire.open("bob")
    bob.session("s").put("n", "q", {"by": "bob"})
    wire.sync(bob)
    ann = wire.open("ann", connection_factory=watched)
    session = ann.session("s")
    receipts = [session.put("n", "r", {"x": 1}), session.append("said", {})]
    line = wire.connect(ann)
    for step in range(50):
        if step == which:
            commits_fail(ann, committed=committed)
        if line.to_server and line.up:
            line.send_one()
        if line.to_client and line.up:
            line.receive_one()
    line.cut()
    stop_failing(ann)
    wire.sync(ann)
    assert [r.state for r in receipts] == [ReceiptState.APPLIED] * 2
    assert ann.client_id == "ann"
    assert state_of(ann, "s") == wire.state("s")
    assert len(wire.log("s")) == 3


FILL = """
import resource, sys
from syncline.client import Replica
from syncline.sync import DiskFull, LocalError
replica = Replica(sys.argv[1])
session = replica.session("s")
size = replica.path.stat().st_size + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
stored = 0
try:
    for i in range(1000):
        session.put("n", f"r{i}", {"x": "x" * 2000})
        stored += 1
except DiskFull as error:
    print(stored, error.code)
assert session.count("n") == stored, "what failed is to be seen"
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
session.put("n", "after", {})
assert session.count("n") == stored + 1
replica.close()
"""


@pytest.mark.parametrize("room", [0, 10_000, 123_456])
def test_a_full_disk_fails_the_write_and_no_other_and_is_over_when_there_is_room(
    folder: Path, tmp_path: Path, room: int
) -> None:
    path = tmp_path / "ann"
    with Replica(path, client_id="ann") as replica:
        replica.session("s")
    run = subprocess.run(
        [sys.executable, "-c", FILL, path, str(room)], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    stored, code = map(int, run.stdout.split())
    assert code == 3105
    with Replica(path) as replica:
        session = replica.session("s")
        assert session.count("n") == stored + 1
        assert [op.n for op in session.pending()] == list(range(1, stored + 2))


def test_a_replica_that_was_closed_says_so_and_closes_twice(folder: Path) -> None:
    replica, session = _watched(folder)
    replica.close()
    replica.close()
    with pytest.raises(LocalError, match="closed"):
        session.put("n", "r", {})
    with pytest.raises(LocalError, match="closed"):
        session.get("n", "r")
