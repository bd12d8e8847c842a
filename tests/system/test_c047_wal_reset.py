"""C047: SQLite's WAL-reset fault: no committed write disappears where checkpoints meet commits.

Who may checkpoint what: a server's file only the one connection of the one server process (it holds
the file's lock; tools open it read-only); a replica's file the one connection of each process that
has it open, and all of them hold one file lock around every commit, checkpoint and close where the
library has the fault.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from syncline.cli.verify import verify_file
from syncline.sync import wal_reset_fault

from .support import ROOT, SESSION, World, command, query


@pytest.mark.parametrize(
    ("version", "faulty"),
    [
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
    ],
)
def test_C047_the_affected_versions_are_known(version: tuple[int, ...], faulty: bool) -> None:
    assert wal_reset_fault(version) is faulty


def test_C047_version_journal_mode_and_guard_are_in_the_status(world: World) -> None:
    world.start()
    world.session("a")
    status = world.replica("a").status()
    assert status.sqlite_version == sqlite3.sqlite_version
    assert status.journal_mode == "wal"
    assert status.wal_guard is wal_reset_fault(sqlite3.sqlite_version_info)
    connection = world.replica("a")._core.database.connection
    assert connection.execute("PRAGMA mmap_size").fetchone() in (None, (0,))
    assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)
    world.sync("a")
    world.check(apart=["a"])


# Every process checkpoints after every commit, which is what the fault needs to show.
_WRITER = f"""
import sys, time
from syncline.client import Replica, _database
_database.WAL_BYTES_MAX, _database.COMMITS_BETWEEN_WAL_CHECKS = 40_000, 1
with Replica(sys.argv[1]) as replica:
    session = replica.session({SESSION!r})
    end, i = time.monotonic() + float(sys.argv[3]), 0
    while time.monotonic() < end:
        receipt = session.put("notes", f"{{sys.argv[2]}}-{{i}}", {{"text": "x" * 400}})
        print(receipt.id, flush=True)
        i += 1
"""

_READER = """
import sqlite3, sys, time
end, reads = time.monotonic() + float(sys.argv[2]), 0
while time.monotonic() < end:
    db = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, timeout=30)
    copy = sqlite3.connect(":memory:")
    if reads % 3 == 0:
        db.backup(copy)
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    else:
        db.execute("SELECT count(*), max(n) FROM syncline_outbox").fetchone()
    copy.close()
    db.close()
    reads += 1
print(reads)
"""


def _python(script: str, *arguments: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _said(child: subprocess.Popen[str], timeout: float) -> list[str]:
    out, _ = child.communicate(timeout=timeout)
    assert child.returncode == 0
    return out.split()


def _stress(world: World, seconds: float) -> None:
    """Two writing processes, a third that syncs, readers and outside backups, one replica."""
    process = world.start_process()
    world.session("a")
    world.close("a")
    path = world.folder / "a.db"
    writers = [_python(_WRITER, path, name, seconds) for name in ("one", "two")]
    readers = [_python(_READER, path, seconds) for _ in range(2)]
    end = time.monotonic() + seconds
    syncs = backups = 0
    while time.monotonic() < end:
        subprocess.run(
            command("sync", str(path), process.url), cwd=ROOT, check=True, capture_output=True
        )
        syncs += 1
        target = world.folder / "copy.db"
        subprocess.run(
            command("backup", "--data", str(world.data), str(target)),
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        backups += 1
        assert verify_file(target).all_problems() == []
    told = [receipt for writer in writers for receipt in _said(writer, seconds + 60)]
    for reader in readers:
        assert int(_said(reader, seconds + 60)[0]) > 3
    assert len(told) > 20 and syncs and backups
    world.session("a")
    world.sync("a")
    world.session("b")
    world.sync("b")
    _nothing_missing(world, path, told)


def _nothing_missing(world: World, path: Path, told: list[str]) -> None:
    world.check()
    in_log = {entry.salt.hex() for entry in world.log()}
    assert set(told) <= in_log
    for file in (path, world.data):
        with closing(sqlite3.connect(file)) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert query(path, "SELECT count(*) FROM syncline_outbox") == [(0,)]


def test_C047_no_acknowledged_write_is_missing_after_commits_met_checkpoints(
    world: World,
) -> None:
    _stress(world, 2.0)


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_C047_no_acknowledged_write_is_missing_after_half_an_hour_of_it(world: World) -> None:
    _stress(world, 1800.0)


def test_C047_a_server_that_checkpoints_all_the_time_keeps_what_it_answered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncline.server._sqlite_store.WAL_BYTES_MAX", 40_000)
    world.start()
    a = world.session("a")
    copies = 0
    with world.replica("a").connect(world.url):
        for i in range(60):
            receipt = a.put("notes", f"r{i}", {"text": "x" * 2000})
            assert receipt.wait(10).value == "applied"
            if i % 20 == 0:
                with (
                    closing(sqlite3.connect(f"file:{world.data}?mode=ro", uri=True)) as db,
                    closing(sqlite3.connect(world.folder / f"copy{i}.db")) as copy,
                ):
                    db.backup(copy)
                copies += 1
                assert verify_file(world.folder / f"copy{i}.db").all_problems() == []
    assert copies == 3
    assert world.seqs()[SESSION] == list(range(1, 61))
    world.check()
