"""The stores of the house against the contract, and what only one of them can do."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.store_contract import (
    ALL,
    GENESIS,
    StoreContract,
    add_entries,
    everything,
    fill,
    log_row,
    make_session,
)

from syncline.server import _memory_store
from syncline.server._memory_store import MemoryStore
from syncline.server._sqlite_file import WAL_BYTES_MAX
from syncline.server._sqlite_store import SqliteStore
from syncline.server._store import LastOp, RecordKey, RecordRow, Store
from syncline.sync import (
    Damaged,
    DiskFull,
    FileInUse,
    NewerFormat,
    NotAReplica,
    WriteUnknown,
)

GROUP = 20


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        yield MemoryStore()

    def test_it_says_once_that_nothing_lasts(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(_memory_store, "_warned", False)
        with caplog.at_level(logging.WARNING, "syncline.server"):
            MemoryStore()
            MemoryStore()
        assert caplog.messages == ["the store is in memory: nothing lasts longer than this process"]


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def store(self, path: Path) -> Iterator[Store]:
        store = SqliteStore(path)
        yield store
        store.close()


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


# Files that cannot serve.


def test_a_file_of_something_else_is_refused_and_left_as_it_is(path: Path) -> None:
    path.write_bytes(b"Dear diary, " * 1000)
    with pytest.raises(NotAReplica, match=r"server\.db is not a Syncline server's file"):
        SqliteStore(path)
    assert path.read_bytes() == b"Dear diary, " * 1000


def test_a_database_of_something_else_is_refused_and_left_as_it_is(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE contacts (name)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(NotAReplica):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_replica_is_refused_by_what_it_is(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute(f"PRAGMA application_id = {0x53594E52}")
        other.execute("CREATE TABLE syncline_meta (key)")
    other.close()
    with pytest.raises(NotAReplica, match="client's replica"):
        SqliteStore(path)


def test_a_missing_file_is_only_made_when_asked_to(path: Path) -> None:
    with pytest.raises(NotAReplica, match="there is no file"):
        SqliteStore(path, create=False)
    with pytest.raises(NotAReplica, match="there is no folder"):
        SqliteStore(path / "deeper" / "server.db")
    with pytest.raises(NotAReplica, match="is not a file"):
        SqliteStore(path.parent)
    assert os.listdir(path.parent) == []


def test_an_empty_file_is_only_filled_when_asked_to(path: Path) -> None:
    path.touch()
    with pytest.raises(NotAReplica):
        SqliteStore(path, create=False)
    assert path.stat().st_size == 0
    SqliteStore(path).close()


def test_a_newer_format_is_refused_with_both_numbers(path: Path) -> None:
    SqliteStore(path).close()
    change(path, "PRAGMA user_version = 7")
    with pytest.raises(NewerFormat, match="has format 7, and this version knows up to 1"):
        SqliteStore(path)


@pytest.mark.parametrize("name", ["records", "log_dot", "log_stands"])
def test_a_file_that_lacks_a_table_an_index_or_a_trigger_is_damaged(path: Path, name: str) -> None:
    SqliteStore(path).close()
    kind = {"records": "TABLE", "log_dot": "INDEX", "log_stands": "TRIGGER"}[name]
    change(path, f"DROP {kind} {name}")
    with pytest.raises(Damaged, match=name):
        SqliteStore(path)


def test_a_file_without_its_identity_is_damaged(path: Path) -> None:
    SqliteStore(path).close()
    change(path, "DELETE FROM store WHERE key = 'store_id'")
    with pytest.raises(Damaged):
        SqliteStore(path)


@pytest.mark.parametrize("cut", ["header", "middle", "tail"])
def test_a_damaged_file_is_named_and_left_as_it_is(path: Path, cut: str) -> None:
    store = SqliteStore(path)
    make_session(store, 200)
    store.close()
    data = bytearray(path.read_bytes())
    if cut == "header":
        data[16:90] = b"\xff" * 74
    elif cut == "middle":
        data[4096:] = b"\xff" * (len(data) - 4096)
    else:
        del data[8192:]
    path.write_bytes(data)
    with pytest.raises(Damaged, match=r"server\.db"):
        store = SqliteStore(path)
        try:
            everything(store)
        finally:
            store.close()
    assert path.read_bytes() == bytes(data)


def test_damage_found_while_reading_is_named_and_the_store_lives_on(path: Path) -> None:
    store = SqliteStore(path)
    make_session(store)
    with store.transaction() as tx:
        tx.put_conflicts("s", [])
    store.close()
    change(path, "INSERT INTO conflicts VALUES (1, 'c', 0, x'c1')")
    store = SqliteStore(path)
    with pytest.raises(Damaged, match="conflict c"):
        store.snapshot("s", b"", "ann", 1, ALL, ALL)
    assert len(make_session(store, 2, "t")) == 2
    store.close()


@pytest.mark.parametrize("read_only", ["file", "folder"])
def test_what_cannot_be_written_is_read_only(read_only: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.db"
        SqliteStore(path).close()
        os.chmod(path, 0o444 if read_only == "file" else 0o666)
        path.with_name("server.db-lock").chmod(0o666)
        if read_only == "folder":
            path.with_name("server.db-lock").unlink()
        os.chmod(folder, 0o777 if read_only == "file" else 0o555)
        # The rights of root know no bounds, so the child gives them up.
        done = run_child(
            "if os.geteuid() == 0:",
            "    os.seteuid(65534)",
            f"SqliteStore({str(path)!r})",
        )
        os.chmod(folder, 0o700)
    assert "ReadOnly" in done.stderr and "server.db" in done.stderr, done.stderr


# Crashes and failing disks.


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


class Spy:
    """Stands before the store's connection, and makes a statement fail before or after it ran."""

    def __init__(self, store: SqliteStore, fail: str = "", *, after: bool = False) -> None:
        self._db, self._fail, self._after = store._db, fail, after
        self._seen: list[str] = []
        store._db = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, sql: str, *values: Any) -> Any:
        assert self._db is not None
        self._seen.append(sql)
        if sql != self._fail:
            return self._db.execute(sql, *values)
        if self._after:
            self._db.execute(sql, *values)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error

    def executed(self, sql: str) -> int:
        return self._seen.count(sql)


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
        tx.set_incarnation("ann", 5)
        with pytest.raises(DiskFull):
            tx.put_records("s", [RecordRow("c", "r", 1, bytes(1 << 20))])
        with pytest.raises(DiskFull):
            tx.set_incarnation("bob", 5)
    store._db.execute("PRAGMA max_page_count = 100000")
    with store.transaction() as tx:
        assert (tx.incarnation("ann"), tx.incarnation("bob")) == (0, 0)
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


# Helpers; the first two run in child processes as well.


def write_group(store: Store) -> int:
    """Commit one group of entries, with a record and a last op that must go along."""
    head = store.head("s")
    assert head is not None
    rows = [log_row(head.seq + 1 + i) for i in range(GROUP)]
    with store.transaction() as tx:
        add_entries(tx, rows)
        tx.put_records("s", [RecordRow("c", "r", rows[-1].seq, b"%d" % rows[-1].seq)])
        tx.set_last_ops("s", {"ann": LastOp(rows[-1].seq, b"h" * 32)})
    return rows[-1].seq


def check_groups(store: Store) -> int:
    """That only whole groups are there, and everything agrees; returns the head's seq."""
    head = store.head("s")
    assert head is not None and head.seq % GROUP == 0
    rows = store.entries("s", 0, ALL, ALL)
    assert [row.seq for row in rows] == list(range(1, head.seq + 1))
    assert head.hash == (rows[-1].hash if rows else GENESIS)
    last = store.last_op("s", "ann")
    assert (0 if last is None else last.n) == head.seq
    with store.transaction() as tx:
        state = tx.records("s", [RecordKey("c", "r")])
    assert list(state.values()) == ([b"%d" % head.seq] if head.seq else [])
    return head.seq


_CHILD = (
    "import os, sys",
    "from syncline.server._sqlite_store import SqliteStore",
    "from syncline.sync import DiskFull",
    "from tests.server.store_contract import add_entries, log_row, make_session",
    "from tests.server.test_stores import check_groups, write_group",
)


def start_child(*lines: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "\n".join((*_CHILD, *lines))],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run_child(*lines: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "\n".join((*_CHILD, *lines))],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def change(path: Path, sql: str) -> None:
    """Do to a closed file what no store would."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(sql)
    db.close()


def page_count(store: SqliteStore) -> int:
    assert store._db is not None
    return int(store._db.execute("PRAGMA page_count").fetchone()[0])
