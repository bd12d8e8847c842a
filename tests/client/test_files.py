"""Files that are no replica, or not in a state to be one: refused with a reason, and untouched."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from syncline.client import Replica
from syncline.sync import (
    Damaged,
    LocalError,
    NewerFormat,
    NotAReplica,
    NotFound,
    ReadOnly,
    SyncError,
)


def _replica(path: Path, count: int = 1) -> Path:
    with Replica(path, client_id="ann") as replica:
        session = replica.session("s")
        with replica.batch():
            for i in range(count):
                session.put("n", f"r{i}", {"text": "x" * 100})
    return path


def _refused(path: Path, error: type[SyncError], match: str | None = None) -> None:
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(error, match=match) as caught:
        Replica(path)
    assert str(path) in str(caught.value)
    assert before is None or path.read_bytes() == before


def test_a_text_file_is_no_replica(folder: Path) -> None:
    path = folder / "letter.txt"
    path.write_text("Dear replica,\n" * 100)
    _refused(path, NotAReplica)


def test_a_folder_is_no_replica(folder: Path) -> None:
    _refused(folder, NotAReplica, "folder")


def test_another_apps_sqlite_file_is_no_replica(folder: Path) -> None:
    path = folder / "app.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE contacts (name)")
    _refused(path, NotAReplica)


def test_an_empty_file_becomes_a_replica(folder: Path) -> None:
    path = folder / "new"
    path.touch()
    _replica(path)
    with Replica(path) as replica:
        assert replica.session("s").count("n") == 1


def test_a_replica_in_a_folder_that_is_not_there_is_not_found(folder: Path) -> None:
    with pytest.raises(NotFound, match="no does not exist"):
        Replica(folder / "no" / "replica")
    assert list(folder.iterdir()) == []


def test_a_replica_that_must_be_there_and_is_not_is_not_found_and_not_made(folder: Path) -> None:
    with pytest.raises(NotFound):
        Replica(folder / "none", create=False)
    assert list(folder.iterdir()) == []


def test_a_file_of_a_newer_format_is_left_to_newer_versions(folder: Path) -> None:
    path = _replica(folder / "ann")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA user_version = 99")
    _refused(path, NewerFormat, "99")


@pytest.mark.parametrize("table", ["syncline_outbox", "syncline_records", "syncline_sessions"])
def test_a_file_whose_version_lies_about_its_tables_is_damaged(folder: Path, table: str) -> None:
    path = _replica(folder / "ann")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"DROP TABLE {table}")
    _refused(path, Damaged, table)


def test_a_damaged_page_is_an_error_that_names_the_file_and_no_wrong_answer(
    folder: Path,
) -> None:
    path = _replica(folder / "ann", 2000)
    size = path.stat().st_size
    with open(path, "r+b") as file:
        for page in range(40, size // 4096):
            file.seek(page * 4096)
            file.write(b"\xff" * 4096)
    with Replica(path) as replica:
        session = replica.session("s")
        with pytest.raises(Damaged, match="ann"):
            for i in range(2000):
                session.get("n", f"r{i}")


def test_a_truncated_file_is_damaged(folder: Path) -> None:
    path = _replica(folder / "ann", 500)
    with open(path, "r+b") as file:
        file.truncate(5000)
    with pytest.raises(Damaged), Replica(path) as replica:
        list(replica.session("s").records("n"))


def test_a_wal_that_is_missing_costs_what_was_in_it_and_nothing_else(folder: Path) -> None:
    path = folder / "ann"
    with Replica(path, client_id="ann") as replica:
        replica.session("s").put("n", "old", {})
    with Replica(path) as replica:
        replica.session("s").put("n", "new", {})
        shutil.copy(path, folder / "copy")  # Without its -wal.
    with Replica(folder / "copy") as replica:
        assert [id_ for id_, _ in replica.session("s").records("n")] == ["old"]
        replica.session("s").put("n", "more", {})
        assert [op.n for op in replica.session("s").pending()] == [1, 2]


def test_R1_4_what_was_not_checkpointed_is_there_after_the_process_is_gone(folder: Path) -> None:
    path = folder / "ann"
    child = os.fork()
    if child == 0:
        replica = Replica(path, client_id="ann")
        replica.session("s").put("n", "r", {})
        os._exit(0)
    os.waitpid(child, 0)
    assert (folder / "ann-wal").stat().st_size > 0
    with Replica(path) as replica:
        assert replica.session("s").get("n", "r") == {}


needs_permissions = pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")


@needs_permissions
def test_a_read_only_file_is_said_to_be_one(folder: Path) -> None:
    path = _replica(folder / "ann")
    path.chmod(stat.S_IRUSR)
    _refused(path, ReadOnly)


@needs_permissions
def test_a_read_only_folder_is_said_to_be_one(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    _replica(inner / "ann")
    inner.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        _refused(inner / "other", ReadOnly)
    finally:
        inner.chmod(stat.S_IRWXU)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_this_user_may_not_write_is_read_only(folder: Path, what: str) -> None:
    path = _replica(folder / "ann")
    folder.chmod(0o755 if what == "folder" else 0o777)
    path.chmod(0o644)
    for beside in folder.glob("ann-*"):
        beside.chmod(0o666)
    child = os.fork()
    if child == 0:
        os.setresuid(65534, 65534, 65534)
        try:
            replica = Replica(path if what == "file" else folder / "other")
            replica.session("s").put("n", "more", {})
        except ReadOnly:
            os._exit(0)
        except BaseException:
            os._exit(1)
        os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    with Replica(path) as replica:
        assert replica.session("s").count("n") == 1


def test_a_replica_is_for_its_owner_only(folder: Path) -> None:
    path = _replica(folder / "ann")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_option_that_is_none_is_refused_before_a_file_is_made(folder: Path) -> None:
    with pytest.raises(LocalError, match="durability"):
        Replica(folder / "ann", durability="some")  # type: ignore[arg-type]
    with pytest.raises(SyncError):
        Replica(folder / "ann", client_id="not an id!")
    assert list(folder.iterdir()) == []


def test_a_replica_keeps_its_client_id_and_says_how_it_stands(folder: Path) -> None:
    path = _replica(folder / "ann")
    with Replica(path) as replica:
        assert replica.client_id == "ann"
        status = replica.status()
        assert (status.connection, status.url, status.since) == ("never connected", None, None)
        assert (status.pending, status.refused, status.conflicts) == (1, 0, 0)
        assert (status.journal_mode, status.durability) == ("wal", "full")
        assert status.oldest_pending_at is not None
        (session,) = status.sessions
        assert (session.id, session.seq, session.pending, session.paused) == ("s", 0, 1, None)


def test_two_fresh_replicas_have_two_ids(folder: Path) -> None:
    with Replica(folder / "a") as one, Replica(folder / "b") as other:
        assert one.client_id != other.client_id
