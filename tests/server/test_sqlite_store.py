"""The SQLite store: what lasts, who is kept out, and what a crash or a full disk leaves."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
from pathlib import Path

import pytest
from tests.server.store_contract import (
    ALL,
    add_entries,
    everything,
    fill,
    log_row,
    make_session,
)
from tests.server.store_files import (
    GROUP,
    Spy,
    check_groups,
    page_count,
    run_child,
    start_child,
    write_group,
)

from syncline.server import Device
from syncline.server._restore import backup
from syncline.server._sqlite_file import WAL_BYTES_MAX
from syncline.server._sqlite_store import SqliteStore
from syncline.server._store import RecordRow
from syncline.sync import (
    DiskFull,
    FileInUse,
    NotAReplica,
    WriteUnknown,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "server.db"


def test_everything_is_there_after_closing_and_opening_again(path: Path) -> None:
    store = SqliteStore(path)
    make_session(store, 3)
    fill(store)
    before = everything(store)
    store.close()
    store.close()
    assert sorted(os.listdir(path.parent)) == ["server.db", "server.db-lock"]
    store = SqliteStore(path, create=False)
    assert everything(store) == before
    store.close()


def test_only_the_owner_may_read_the_files(path: Path) -> None:
    store = SqliteStore(path)
    make_session(store)
    for name in os.listdir(path.parent):
        assert stat.S_IMODE((path.parent / name).stat().st_mode) == 0o600, name
    store.close()


def test_the_file_is_set_up_for_durable_commits_through_one_connection(path: Path) -> None:
    store = SqliteStore(path)
    assert store._db is not None
    found = {
        name: store._db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "wal_autocheckpoint", "mmap_size")
    }
    assert found == {
        "journal_mode": "wal",
        "synchronous": 2,
        "wal_autocheckpoint": 0,
        "mmap_size": 0,
    }
    store.close()


def test_a_second_server_is_told_which_file_is_in_use(path: Path) -> None:
    store = SqliteStore(path)
    link = path.with_name("link.db")
    link.symlink_to(path)
    for name in (path, link):
        with pytest.raises(FileInUse, match="server.db"):
            SqliteStore(name)
    store.close()
    SqliteStore(link).close()


def test_another_process_is_kept_out_too(path: Path) -> None:
    store = SqliteStore(path)
    done = run_child(f"SqliteStore({str(path)!r})")
    assert done.returncode == 1
    assert "FileInUse" in done.stderr and str(path) in done.stderr
    store.close()


def test_a_reader_sees_one_moment_and_hinders_no_commit(path: Path) -> None:
    store = SqliteStore(path)
    make_session(store, 1)
    reader = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM log").fetchone() == (1,)
    with store.transaction() as tx:
        add_entries(tx, [log_row(2)])
    assert reader.execute("SELECT count(*) FROM log").fetchone() == (1,)
    reader.execute("COMMIT")
    assert reader.execute("SELECT count(*) FROM log").fetchone() == (2,)
    reader.close()
    store.close()


def test_the_write_ahead_log_stays_within_bounds(path: Path) -> None:
    store = SqliteStore(path)
    make_session(store)
    wal = path.with_name("server.db-wal")
    largest = seq = 0
    for _ in range(12):
        with store.transaction() as tx:
            add_entries(tx, [log_row(seq + 1, entry=bytes(1 << 20))])
        seq += 1
        store.checkpoint()
        store.checkpoint()
        largest = max(largest, wal.stat().st_size)
    assert WAL_BYTES_MAX <= largest < WAL_BYTES_MAX + (2 << 20)
    assert path.stat().st_size > 8 << 20
    store.close()


def test_a_reader_that_stays_keeps_checkpoints_rare(path: Path) -> None:
    store = SqliteStore(path)
    make_session(store, 1)
    reader = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM log").fetchone()
    spy = Spy(store)
    for seq in range(2, 12):
        with store.transaction() as tx:
            add_entries(tx, [log_row(seq, entry=bytes(1 << 20))])
        store.checkpoint()
    assert spy.executed("PRAGMA wal_checkpoint(PASSIVE)") == 2
    reader.close()
    store.close()


def test_a_kill_between_and_within_commits_keeps_whole_groups_and_all_acknowledged(
    path: Path,
) -> None:
    acknowledged = 0
    for _ in range(3):
        with start_child(
            f"store = SqliteStore({str(path)!r})",
            "if store.head('s') is None: make_session(store)",
            "while True: print(write_group(store), flush=True)",
        ) as child:
            assert child.stdout is not None
            for _ in range(25):
                acknowledged = int(child.stdout.readline())
            child.kill()
            rest = child.stdout.read().split("\n")[:-1]
        acknowledged = int(rest[-1]) if rest else acknowledged
        store = SqliteStore(path)
        seq = check_groups(store)
        assert acknowledged <= seq <= acknowledged + GROUP
        store.close()


def test_a_kill_inside_a_transaction_leaves_nothing_of_it(path: Path) -> None:
    with start_child(
        f"store = SqliteStore({str(path)!r})",
        "make_session(store)",
        "write_group(store)",
        "with store.transaction() as tx:",
        # Large enough to spill from the page cache into the write-ahead log.
        "    add_entries(tx, [log_row(21 + i, entry=bytes(1 << 20)) for i in range(40)])",
        "    print('inside', flush=True)",
        "    sys.stdin.read()",
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == "inside\n"
        assert path.with_name("server.db-wal").stat().st_size > 4 << 20
        child.kill()
    store = SqliteStore(path)
    assert check_groups(store) == GROUP
    assert write_group(store) == 2 * GROUP
    store.close()


def test_a_full_disk_fails_the_group_whole_and_the_store_goes_on_when_there_is_space(
    path: Path,
) -> None:
    done = run_child(
        "import resource",
        f"store = SqliteStore({str(path)!r})",
        "make_session(store)",
        "_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)",
        "resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))",
        "last = failures = 0",
        "while failures < 3:",
        "    try:",
        "        last = write_group(store)",
        "    except DiskFull as error:",
        "        failures += 1",
        "        assert str(store.path) in error.reason",
        "assert last > 0 and check_groups(store) == last",
        "resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))",
        "assert write_group(store) == last + 20",
        "store.close()",
        "print(last)",
    )
    assert done.returncode == 0, done.stderr
    store = SqliteStore(path)
    assert check_groups(store) == int(done.stdout) + GROUP
    store.close()


def test_commits_checkpoints_backups_and_readers_together_lose_nothing(path: Path) -> None:
    """Case C047, as far as the stores let it happen: one process commits and checkpoints after
    every group, others read and take backups, and every acknowledged group stays."""
    with start_child(
        "from syncline.server import _sqlite_store",
        "_sqlite_store.WAL_BYTES_MAX = 1",
        f"store = SqliteStore({str(path)!r})",
        "make_session(store)",
        "while True:",
        "    print(write_group(store), flush=True)",
        "    store.checkpoint()",
    ) as child:
        assert child.stdout is not None
        acknowledged = int(child.stdout.readline())
        for turn in range(40):
            backup(path, path.with_name("saved.db"))
            reader = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
            (seq,) = reader.execute("SELECT max(seq) FROM log").fetchone()
            assert seq >= acknowledged and seq % GROUP == 0, turn
            reader.close()
            acknowledged = int(child.stdout.readline())
        child.kill()
        rest = child.stdout.read().split("\n")[:-1]
    store = SqliteStore(path)
    assert check_groups(store) >= int(rest[-1] if rest else acknowledged)
    assert store._db is not None
    assert store._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    store.close()


def test_the_journal_says_at_the_start_which_library_is_at_work(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "syncline.server")
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.40.1")
    for version, told in [((3, 40, 1), True), ((3, 51, 3), False)]:
        monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
        caplog.clear()
        SqliteStore(path).close()
        assert len(caplog.messages) == 1 and "SQLite 3.40.1" in caplog.messages[0]
        assert ("WAL-reset fault" in caplog.messages[0]) is told


def test_an_interruption_at_the_commit_leaves_no_transaction_open(path: Path) -> None:
    store = SqliteStore(path)
    make_session(store)
    Spy(store, "COMMIT", error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        write_group(store)
    assert store._db is not None and not store._db.in_transaction
    store.close()
    store = SqliteStore(path)
    assert check_groups(store) == 0
    store.close()


def test_a_commit_that_fails_is_reported_and_nothing_of_it_is_stored(path: Path) -> None:
    store = SqliteStore(path)
    make_session(store)
    Spy(store, "COMMIT")
    with pytest.raises(DiskFull):
        write_group(store)
    assert check_groups(store) == 0
    assert write_group(store) == GROUP
    store.close()


def test_a_commit_that_was_durable_but_failed_to_answer_counts_as_done(path: Path) -> None:
    store = SqliteStore(path)
    make_session(store)
    Spy(store, "COMMIT", after=True)
    assert write_group(store) == GROUP
    assert check_groups(store) == GROUP
    store.close()


def test_a_commit_of_which_nothing_can_be_learned_is_unknown_until_the_file_is_back(
    path: Path,
) -> None:
    store = SqliteStore(path)
    make_session(store)
    Spy(store, "COMMIT", after=True)
    away = path.parent / "away"
    away.mkdir()
    with pytest.raises(WriteUnknown), store.transaction() as tx:
        add_entries(tx, [log_row(1)])
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).rename(away / (path.name + suffix))
    with pytest.raises(NotAReplica):
        store.head("s")
    for file in away.iterdir():
        file.rename(path.with_name(file.name))
    head = store.head("s")
    assert head is not None and head.seq == 1
    store.close()


def test_a_transaction_whose_failure_was_swallowed_commits_nothing(path: Path) -> None:
    store = SqliteStore(path)
    make_session(store, 1)
    assert store._db is not None
    store._db.execute(f"PRAGMA max_page_count = {page_count(store) + 4}")
    with pytest.raises(DiskFull), store.transaction() as tx:
        tx.set_device("ann", Device(5, None))
        with pytest.raises(DiskFull):
            tx.put_records("s", [RecordRow("c", "r", 1, bytes(1 << 20))])
        with pytest.raises(DiskFull):
            tx.set_device("bob", Device(5, None))
    store._db.execute("PRAGMA max_page_count = 100000")
    with store.transaction() as tx:
        assert (tx.device("ann").incarnation, tx.device("bob").incarnation) == (0, 0)
    store.close()


def test_a_checkpoint_that_fails_costs_nothing_but_a_line_in_the_journal(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqliteStore(path)
    make_session(store)
    with store.transaction() as tx:
        add_entries(tx, [log_row(1, entry=bytes(WAL_BYTES_MAX))])
    Spy(store, "PRAGMA wal_checkpoint(PASSIVE)")
    store.checkpoint()
    store.checkpoint()
    assert len(caplog.messages) == 1 and "disk I/O error" in caplog.messages[0]
    assert len(store.entries("s", 0, ALL, ALL)) == 1
    store.close()


def test_a_closed_store_says_so(path: Path) -> None:
    store = SqliteStore(path)
    store.close()
    with pytest.raises(AssertionError, match="closed"):
        store.head("s")
