"""Backups, and restores that raise the epoch above all that anybody has seen."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.server.store_contract import ALL, everything, fill, make_session
from tests.server.store_files import change, check_groups, write_group

from syncline.server import _restore
from syncline.server._ledger import check_ledger
from syncline.server._restore import Restored, backup, restore
from syncline.server._sqlite_store import SqliteStore
from syncline.server._store import Identity
from syncline.sync import Damaged, FileInUse, NewerFormat, NotAReplica, unpack


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "server.db"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return tmp_path / "saved.db"


def make_file(path: Path, groups: int = 0) -> Identity:
    store = SqliteStore(path)
    make_session(store)
    for _ in range(groups):
        write_group(store)
    identity = store.identity()
    store.close()
    return identity


def read(path: Path) -> tuple[Identity, int, list[Any]]:
    """A file's identity, the seq of its whole groups, and its ledger's rows."""
    store = SqliteStore(path, create=False)
    try:
        rows = store.ledger(0, ALL)
        check_ledger(rows)
        return store.identity(), check_groups(store), [unpack(row.row) for row in rows]
    finally:
        store.close()


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path.parent))


def test_a_backup_is_the_whole_store_in_one_private_file(path: Path, saved: Path) -> None:
    store = SqliteStore(path)
    make_session(store, 2)
    fill(store)
    backup(path, saved)
    before = everything(store)
    store.close()
    assert names(path) == ["saved.db", "server.db", "server.db-lock"]
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    copy = SqliteStore(saved)
    assert everything(copy) == before
    copy.close()


def test_backups_taken_while_a_server_writes_hold_whole_groups(path: Path, saved: Path) -> None:
    store = SqliteStore(path)
    make_session(store)
    failures: list[BaseException] = []

    def take_backups() -> None:
        try:
            for _ in range(20):
                backup(path, saved)
                taken.append(read_copy(saved))
        except BaseException as error:
            failures.append(error)

    taken: list[int] = []
    thread = threading.Thread(target=take_backups)
    thread.start()
    written = 0
    while thread.is_alive():
        written = write_group(store)
        store.checkpoint()
    thread.join()
    assert not failures
    assert taken == sorted(taken) and len(taken) == 20 and taken[-1] <= written
    assert check_groups(store) == written
    assert store._db is not None
    assert store._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    store.close()


def read_copy(saved: Path) -> int:
    """The seq in a backup; it is left as one file, so that the next may take its place."""
    db = sqlite3.connect(saved)
    try:
        (seq,) = db.execute("SELECT seq FROM sessions").fetchone()
        (entries,) = db.execute("SELECT count(*) FROM log").fetchone()
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert seq == entries and seq % 20 == 0
        return int(seq)
    finally:
        db.close()


def test_a_backup_never_takes_the_place_of_a_file_in_use(path: Path, saved: Path) -> None:
    make_file(path)
    with pytest.raises(FileInUse, match="server's file itself"):
        backup(path, path)
    other = SqliteStore(saved)
    make_session(other)
    with pytest.raises(FileInUse, match="write-ahead log"):
        backup(path, saved)
    other.close()


def test_a_restore_brings_back_the_backup_in_a_new_epoch(path: Path, saved: Path) -> None:
    identity = make_file(path, groups=2)
    backup(path, saved)
    store = SqliteStore(path)
    write_group(store)
    store.close()
    assert restore(path, saved) == Restored(identity.store_id, 1, 2)
    found, seq, ledger = read(path)
    assert (found, seq) == (Identity(identity.store_id, 2), 40)
    n, at, kind, session, facts, _ = ledger[-1]
    assert (n, kind, session, facts) == (1, "restore", "", {"from": 1, "to": 2, "replaced": 1})
    assert at > 1_500_000_000_000_000
    assert names(path) == ["saved.db", "server.db", "server.db-lock"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # The backup stays as it was, for the next time.
    assert restore(path, saved).epoch == 3


def test_a_restore_without_a_backup_raises_the_epoch_of_the_file_in_place(path: Path) -> None:
    identity = make_file(path, groups=1)
    assert restore(path) == Restored(identity.store_id, 1, 2)
    assert restore(path) == Restored(identity.store_id, 2, 3)
    found, seq, ledger = read(path)
    assert (found.epoch, seq, len(ledger)) == (3, 20, 2)


def test_heads_keep_their_epoch_until_the_next_entry(path: Path) -> None:
    make_file(path, groups=1)
    restore(path)
    store = SqliteStore(path)
    head = store.head("s")
    assert head is not None and head.epoch == 1
    with store.transaction() as tx:
        assert tx.create("new", b"g" * 32, 1).epoch == 2
    store.close()


def test_the_new_epoch_is_above_that_of_the_file_which_is_replaced(path: Path, saved: Path) -> None:
    make_file(path)
    backup(path, saved)
    for _ in range(4):
        restore(path)
    assert restore(path, saved)[1:] == (1, 6)
    assert read(path)[2][-1][4] == {"from": 1, "to": 6, "replaced": 5}


def test_a_restore_fills_the_place_of_a_lost_file(path: Path, saved: Path) -> None:
    make_file(path, groups=1)
    backup(path, saved)
    store = SqliteStore(path)
    write_group(store)
    left = path.with_name("server.db-wal").read_bytes()
    store.close()
    path.unlink()
    # What lies about of the lost file must not be taken for the new one's.
    path.with_name("server.db-wal").write_bytes(left)
    assert restore(path, saved)[1:] == (1, 2)
    assert read(path)[1] == 20
    assert [name for name in names(path) if "server" in name] == ["server.db", "server.db-lock"]


def test_a_log_left_by_a_killed_server_is_not_replayed_into_the_restored_file(
    path: Path, saved: Path
) -> None:
    make_file(path, groups=1)
    backup(path, saved)
    store = SqliteStore(path)
    write_group(store)
    kept = {name: path.with_name(name).read_bytes() for name in ("server.db", "server.db-wal")}
    store.close()
    for name, data in kept.items():
        path.with_name(name).write_bytes(data)
    assert restore(path, saved)[1:] == (1, 2)
    assert read(path)[1] == 20


def test_a_log_left_by_a_killed_server_is_part_of_a_file_restored_in_place(path: Path) -> None:
    make_file(path, groups=1)
    store = SqliteStore(path)
    write_group(store)
    kept = {name: path.with_name(name).read_bytes() for name in ("server.db", "server.db-wal")}
    store.close()
    for name, data in kept.items():
        path.with_name(name).write_bytes(data)
    assert restore(path)[1:] == (1, 2)
    assert read(path)[1] == 40


@pytest.mark.parametrize("damage", ["header", "pages", "identity", "empty"])
def test_a_damaged_file_is_replaced_all_the_same(path: Path, saved: Path, damage: str) -> None:
    make_file(path, groups=3)
    backup(path, saved)
    data = bytearray(path.read_bytes())
    if damage == "header":
        data[16:90] = b"\xff" * 74
    elif damage == "pages":
        data[4096:] = b"\xff" * (len(data) - 4096)
    elif damage == "empty":
        data.clear()
    path.write_bytes(data)
    if damage == "identity":
        change(path, "DELETE FROM store")
    assert restore(path, saved)[1:] == (1, 2)
    assert read(path)[1] == 60


def test_no_server_may_be_running_on_the_file(path: Path, saved: Path) -> None:
    make_file(path)
    backup(path, saved)
    store = SqliteStore(path)
    for source in (saved, None):
        with pytest.raises(FileInUse, match="server.db is in use"):
            restore(path, source)
    store.close()
    assert names(path) == ["saved.db", "server.db", "server.db-lock"]


def test_no_tool_may_be_reading_the_file(
    path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncline.server._sqlite_file.BUSY_SECONDS_MAX", 0.05)
    make_file(path)
    backup(path, saved)
    reader = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    assert reader.execute("SELECT count(*) FROM log").fetchone() == (0,)
    with pytest.raises(FileInUse):
        restore(path, saved)
    reader.close()
    assert read(path)[0].epoch == 1
    assert restore(path, saved).epoch == 2


def test_what_is_no_backup_is_refused_and_the_file_stays_in_service(
    path: Path, saved: Path
) -> None:
    identity = make_file(path, groups=1)
    with pytest.raises(NotAReplica, match="there is no file"):
        restore(path, saved)
    saved.write_text("Dear diary")
    with pytest.raises(NotAReplica, match="saved.db"):
        restore(path, saved)
    saved.unlink()
    make_file(saved)
    change(saved, "PRAGMA user_version = 9")
    with pytest.raises(NewerFormat, match="saved.db"):
        restore(path, saved)
    found, seq, _ = read(path)
    assert (found, seq) == (identity, 20)
    assert not [name for name in names(path) if name.startswith(".")]


def test_a_damaged_backup_is_refused_and_the_file_stays_in_service(path: Path, saved: Path) -> None:
    identity = make_file(path, groups=1)
    make_file(saved, groups=30)
    data = bytearray(saved.read_bytes())
    data[-8192:] = b"\xff" * 8192
    saved.write_bytes(data)
    with pytest.raises(Damaged, match="saved.db"):
        restore(path, saved)
    assert read(path)[:2] == (identity, 20)
    assert not [name for name in names(path) if name.startswith(".")]


def test_a_backup_with_an_edited_ledger_is_refused(path: Path, saved: Path) -> None:
    make_file(path)
    restore(path)
    backup(path, saved)
    db = sqlite3.connect(saved, isolation_level=None)
    (trigger,) = db.execute("SELECT sql FROM sqlite_master WHERE name = 'ledger_stands'").fetchone()
    db.execute("DROP TRIGGER ledger_stands")
    db.execute("UPDATE ledger SET row = x'00'")
    db.execute(trigger)
    db.close()
    with pytest.raises(Damaged, match="ledger row 1"):
        restore(path, saved)
    assert read(path)[0].epoch == 2


def test_a_file_of_something_else_is_never_replaced(path: Path, saved: Path) -> None:
    make_file(saved)
    path.write_text("Dear diary")
    with pytest.raises(NotAReplica, match="server.db"):
        restore(path, saved)
    assert path.read_text() == "Dear diary"


@pytest.mark.parametrize("step", ["_raise_epoch", "_clear_away", "sync_folder"])
def test_a_crash_on_the_way_leaves_the_old_file_in_service_or_the_new_one_in_its_epoch(
    path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    make_file(path, groups=1)
    backup(path, saved)
    store = SqliteStore(path)
    write_group(store)
    store.close()

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_restore, step, crash)
        with pytest.raises(KeyboardInterrupt):
            restore(path, saved)
    found, seq, _ = read(path)
    assert (found.epoch, seq) in {(1, 40), (2, 20)}
    assert restore(path, saved).epoch == found.epoch + 1
