"""Files that cannot serve: each is named for what it is, and left as it is."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from tests.server.store_contract import (
    ALL,
    everything,
    make_session,
)
from tests.server.store_files import (
    change,
    run_child,
)

from syncline.cli.verify import verify_file
from syncline.server import Device
from syncline.server._sqlite_store import SqliteStore
from syncline.sync import (
    Damaged,
    NewerFormat,
    NotAReplica,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "server.db"


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
    with pytest.raises(NewerFormat, match="has format 7, and this version knows up to 2"):
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


def test_a_file_of_format_1_is_brought_along_with_what_is_in_it(path: Path) -> None:
    with closing(SqliteStore(path)) as store, store.transaction() as tx:
        tx.set_device("ann", Device(3, "Ann"))
    change(path, "ALTER TABLE devices DROP COLUMN principal")
    change(path, "PRAGMA user_version = 1")
    assert verify_file(path).all_problems() == []
    with closing(SqliteStore(path)) as store, store.transaction() as tx:
        assert tx.device("ann") == Device(3, None)
        tx.set_device("ann", Device(4, "Ann"))
    with closing(SqliteStore(path)) as store, store.transaction() as tx:
        assert tx.device("ann") == Device(4, "Ann")
