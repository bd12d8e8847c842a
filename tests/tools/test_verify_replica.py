"""``verify_file`` on a replica, and ``compare_files`` of replicas with their server."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tools.damage import cells, flipped, run_sql, write_cell
from tests.tools.replica_files import SESSION, build_replicas, sync_all

from syncline.cli.verify import compare_files, verify_file
from syncline.client import Replica
from syncline.server import SqliteStore, SyncServer

GUARDED = {
    "syncline_sessions": ("hash", "floor_hash", "settled_running"),
    "syncline_entries": ("hash", "entry", "salt", "running"),
    "syncline_records": ("state", "base"),
    "syncline_outbox": ("salt", "body", "running"),
    "syncline_conflicts": ("conflict",),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    return build_replicas(tmp_path_factory.mktemp("files"))


@pytest.fixture
def good(files: tuple[Path, list[Path]]) -> Path:
    """A replica with ops that wait."""
    return files[1][1]


@pytest.fixture
def copied(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(good, tmp_path / "copy.db"))


@pytest.mark.parametrize("seed", range(1, 5))
def test_replicas_that_the_client_wrote_hold_while_ops_wait_and_after_all_synced(
    tmp_path: Path, seed: int
) -> None:
    data, paths = build_replicas(tmp_path, seed)
    for path in paths:
        report = verify_file(path)
        assert report.all_problems() == []
        assert (report.ok, report.kind) == (True, "replica")
    assert verify_file(paths[1]).sessions[0].pending == 6
    sync_all(data, paths)
    assert compare_files(data, paths) == []
    reports = [verify_file(path) for path in (data, *paths)]
    assert [report.all_problems() for report in reports] == [[], [], [], []]
    figures = {
        (s.seq, s.head, s.entries, s.alive, s.concurrent, s.lost, s.sha256, s.pending)
        for report in reports
        for s in report.sessions
    }
    assert len(figures) == 1


def test_a_replica_that_came_by_a_bootstrap_holds(tmp_path: Path) -> None:
    data, paths = build_replicas(tmp_path, seed=9, bootstrap_entries_min=1)
    with SyncServer(SqliteStore(data), port=0, bootstrap_entries_min=1) as server:
        with Replica(tmp_path / "late.db", client_id="late") as late:
            report = late.sync_once(server.url)
            late.session(SESSION).put("todo", "r0", {"a": "late"})
    assert report.bootstrapped == 1
    assert verify_file(tmp_path / "late.db").all_problems() == []
    sync_all(data, [*paths, tmp_path / "late.db"])
    assert compare_files(data, [*paths, tmp_path / "late.db"]) == []


def test_the_good_file_has_something_of_everything_that_is_guarded(good: Path) -> None:
    assert {(cell.table, cell.column) for cell in cells(good, GUARDED)} == {
        (table, column) for table, columns in GUARDED.items() for column in columns
    }


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), position=st.integers(0, 4095), mask=st.integers(1, 255))
def test_no_byte_of_an_entry_hash_state_or_outbox_body_changes_unseen(
    good: Path, tmp_path: Path, data: st.DataObject, position: int, mask: int
) -> None:
    column = data.draw(st.sampled_from([(t, c) for t, names in GUARDED.items() for c in names]))
    cell = data.draw(st.sampled_from(cells(good, {column[0]: (column[1],)})))
    path = Path(shutil.copy(good, tmp_path / "flipped.db"))
    write_cell(path, cell, flipped(cell.data, position, mask))
    assert not verify_file(path).ok


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(position=st.integers(0, 1 << 20), mask=st.integers(1, 255))
def test_any_flipped_byte_of_the_file_is_survived(
    good: Path, tmp_path: Path, position: int, mask: int
) -> None:
    path = tmp_path / "flipped.db"
    path.write_bytes(flipped(good.read_bytes(), position, mask))
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    report = verify_file(path)
    assert report.kind in ("replica", "unknown")
    assert report.ok or report.all_problems()


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM syncline_entries WHERE seq = 3", "syncline_entries row 4 follows 2"),
        ("DELETE FROM syncline_outbox WHERE n = (SELECT min(n) FROM syncline_outbox)", "not dense"),
        ("DELETE FROM syncline_records", "syncline_records has no row for"),
        ("DELETE FROM syncline_conflicts", "syncline_conflicts has no row for conflict"),
        ("DELETE FROM syncline_outbox", "does not show its base"),
        ("UPDATE syncline_records SET alive = 1 - alive", "tells life from death wrongly"),
        ("UPDATE syncline_records SET base = NULL", "is not what the log makes of it"),
        ("UPDATE syncline_sessions SET seq = seq + 1", "the log ends at seq"),
        ("UPDATE syncline_sessions SET settled_n = settled_n - 1", "is not settled"),
        ("UPDATE syncline_sessions SET vector = x'80'", "is above the session's vector"),
        ("UPDATE syncline_sessions SET vector = x'01'", "a version vector of the wrong shape"),
        ("UPDATE syncline_outbox SET session = 5", "session number 5, which is none"),
        ("UPDATE syncline_outbox SET stamps = x'90'", "has stamps that do not fit its changes"),
        ("UPDATE syncline_outbox SET salt = NULL", "is a void number by half"),
        ("UPDATE syncline_entries SET n = n + 1000", "its entry is op"),
        ("DELETE FROM syncline_meta WHERE key = 'client'", "syncline_meta has no client id"),
        ("DROP TABLE syncline_consumed", "table syncline_consumed is missing"),
    ],
)
def test_an_edit_by_hand_is_named(copied: Path, statement: str, problem: str) -> None:
    run_sql(copied, statement)
    report = verify_file(copied)
    assert not report.ok
    assert any(problem in one for one in report.all_problems()), report.all_problems()


def test_a_running_hash_is_held_by_the_log_when_nothing_waits(
    files: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    path = Path(shutil.copy(files[1][0], tmp_path / "copy.db"))
    run_sql(path, "UPDATE syncline_sessions SET settled_running = zeroblob(32)")
    problem = "the session's running hash is not that of its last settled op"
    assert verify_file(path).all_problems() == [f"session '{SESSION}': {problem}"]


def test_a_replica_in_use_is_read_at_one_moment(copied: Path) -> None:
    with Replica(copied, create=False) as replica:
        replica.session(SESSION).put("todo", "r9", {"a": 1})
        assert verify_file(copied).all_problems() == []


def test_comparing_names_the_replica_and_what_differs(
    files: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    data, paths = files
    assert compare_files(data, [paths[0]]) == []
    path = Path(shutil.copy(paths[0], tmp_path / "other.db"))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM syncline_records WHERE id = 'r1'")
        db.execute("UPDATE syncline_sessions SET hash = zeroblob(32)")
    problems = compare_files(data, [path])
    name = f"{path} session '{SESSION}'"
    assert problems[1:] == [f"{name} differs from the server in records 'todo/r1'"]
    assert problems[0].startswith(f"{name} stands at seq")
    assert problems[0].endswith(", with another hash")


def test_comparing_finds_replicas_that_share_nothing_with_the_server(
    files: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    with Replica(tmp_path / "alone.db") as replica:
        replica.create_session("mine")
    problems = compare_files(files[0], [tmp_path / "alone.db", files[0]])
    assert problems[0] == f"{tmp_path / 'alone.db'} holds no session of the server"
    assert problems[1] == f"{files[0]}: this is the file of a server, not of a replica"
