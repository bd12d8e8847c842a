"""C068: an upgrade with a full outbox: nothing that waits is lost or misread.

Format 1 is the only one so far. So the tests play a later version of the product, with formats 2
and 3 of its own (see ``later``), and take the real format for the older one. A migration is one
transaction: until it is through, the file is what it was.
"""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from syncline.cli.verify import verify_file
from syncline.client import Replica
from syncline.server import SqliteStore
from syncline.sync import (
    Damaged,
    Hello,
    InvalidValue,
    NewerFormat,
    ReadOnly,
    SyncError,
    UnknownVersion,
)

from .crashing import Crasher
from .later import become_later
from .refusing import reject
from .support import ROOT, SESSION, World, now_us

PENDING = 20
TABLES = (
    "sessions",
    "records",
    "outbox",
    "entries",
    "consumed",
    "refused",
    "conflicts",
    "fields",
    "views",
    "notices",
)


@pytest.fixture
def upgraded(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called, makes this process one of the later version."""
    return lambda: become_later(monkeypatch.setattr)


@pytest.fixture
def full(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A closed replica with 20 pending ops of all kinds, a dead letter, a conflict and a cursor."""
    world.start()
    a, b = world.session("a"), world.session("b")
    for i in range(5):
        a.put("notes", f"r{i}", {"i": i, "by": "a"})
    for i in range(2):
        a.put("notes", f"of both {i}", {"by": "a"})
        b.put("notes", f"of both {i}", {"by": "b"}, updated_at=1)
    world.settle()
    with monkeypatch.context() as patched:
        reject(patched, InvalidValue("this field is not taken here", path="bad"))
        a.put("notes", "dead letter", {"bad": 1})
        world.sync("a")
    a.resolve_conflict(a.conflicts()[0].id, "remote")
    a.delete("notes", "r0")
    a.patch("notes", "r1", {"i": 100})
    a.append("happened", {"what": "it"})
    with a.transaction():
        a.put("notes", "t1", {})
        a.put("notes", "t2", {})
        a.append("happened", {"what": "both"})
    world.replica("a").create_session("made offline", session_id="offline")
    while len(a.pending()) < PENDING:
        a.put("notes", f"p{len(a.pending())}", {"text": "x" * 100})
    path = world.folder / "a.db"
    world.close()
    held = _held(path)
    assert [len(held[name]) for name in ("outbox", "refused", "conflicts")] == [PENDING + 1, 1, 2]
    return path


def _held(path: Path) -> dict[str, list[dict[str, Any]]]:
    """All rows, by column; what the later version adds is left out."""
    added = {"authored", "colour"}
    found = {}
    with closing(sqlite3.connect(path, timeout=30)) as db:
        db.row_factory = sqlite3.Row
        for name in TABLES:
            rows = db.execute(f"SELECT * FROM syncline_{name} ORDER BY 1, 2").fetchall()
            found[name] = [
                {key: row[key] for key in row.keys() if key not in added} for row in rows
            ]
    return found


def _format(path: Path) -> int:
    with closing(sqlite3.connect(path, timeout=30)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        (version,) = db.execute("PRAGMA user_version").fetchone()
        authored = [row[1] for row in db.execute("PRAGMA table_info(syncline_outbox)")]
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    later = version == 3
    assert ("authored" in authored) is ("syncline_sizes" in tables) is later
    assert "syncline_outbox_1" not in tables
    return int(version)


def _all_arrives(world: World, waiting: list[dict[str, Any]], **options: Any) -> None:
    """Sync all that are open; what waited in A's outbox is in the log, once, as it was written."""
    session = world.session("a", **options)
    assert len(session.refused()) == 1
    world.session("b")
    world.settle()
    world.settle()
    entries = [*world.log(), *world.log("offline")]
    bodies = {entry.salt: entry.body for entry in entries}
    assert len(bodies) == len(entries)
    assert {row["salt"]: row["body"] for row in waiting}.items() <= bodies.items()
    assert session.pending() == []
    world.check()


def test_C068_an_older_file_is_brought_up_to_date_with_all_that_waits(
    world: World, full: Path, upgraded: Callable[[], None]
) -> None:
    before = _held(full)
    upgraded()
    with Replica(full) as replica:
        assert len(replica.session(SESSION).pending()) == PENDING
    assert _format(full) == 3
    after = _held(full)
    assert after == before
    with closing(sqlite3.connect(full)) as db:
        authors = db.execute("SELECT authored, count(*) FROM syncline_outbox GROUP BY 1")
        assert authors.fetchall() == [("format 1", PENDING + 1)]
        sizes = db.execute("SELECT size FROM syncline_sizes ORDER BY session, n").fetchall()
    assert [size for (size,) in sizes] == [len(row["body"]) for row in before["outbox"]]
    world.session("a").put("notes", "later", {})
    _all_arrives(world, before["outbox"])


def test_C068_a_kill_at_any_statement_of_a_migration_leaves_the_old_file_or_the_new(
    world: World, full: Path, upgraded: Callable[[], None]
) -> None:
    before = _held(full)
    original = world.folder / "original"
    shutil.copy(full, original)
    formats: list[int] = []
    with Crasher() as crasher:
        while True:
            for suffix in ("-wal", "-shm"):
                Path(f"{full}{suffix}").unlink(missing_ok=True)
            shutil.copy(original, full)
            life = crasher.run("open", full, later=True, at_opening_statement=len(formats))
            assert _held(full) == before
            formats.append(_format(full))
            if not life.killed_by:
                break
            assert life.killed_by == signal.SIGKILL
            # Who comes next finds the file as it is, and goes on.
            assert crasher.run("open", full, later=True).killed_by == 0
            assert _format(full) == 3 and _held(full) == before
        later = crasher.later()
    assert formats == sorted(formats) and set(formats) == {1, 3} and formats.count(1) > 15
    upgraded()
    _all_arrives(world, before["outbox"], clock=lambda: now_us() + later)


def _untouched(path: Path, error: type[SyncError], match: str) -> None:
    before = {file.name: file.read_bytes() for file in path.parent.glob(f"{path.name}*")}
    with pytest.raises(error, match=match) as caught:
        Replica(path)
    assert str(path) in str(caught.value)
    after = {file.name: file.read_bytes() for file in path.parent.glob(f"{path.name}*")}
    assert after == before


def test_C068_an_older_version_refuses_a_newer_file_untouched_and_the_newer_goes_on(
    world: World, full: Path
) -> None:
    """Two versions take turns on one file: the older never gets in, and breaks nothing."""
    before = _held(full)
    for i in range(3):
        with pytest.MonkeyPatch.context() as patched:
            become_later(patched.setattr)
            with Replica(full) as replica:
                replica.session(SESSION).put("notes", f"later{i}", {"i": i})
        _untouched(full, NewerFormat, "has format 3.*reads up to 1")
        run = subprocess.run(
            [sys.executable, "-m", "syncline.cli", "status", str(full)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert run.returncode == 1 and "format 3" in run.stderr
    with pytest.MonkeyPatch.context() as patched:
        become_later(patched.setattr)
        _all_arrives(world, before["outbox"])


def test_C068_two_processes_that_upgrade_at_once_upgrade_once(
    world: World, full: Path, upgraded: Callable[[], None]
) -> None:
    before = _held(full)
    upgraded()
    start = threading.Barrier(4)
    failed: list[BaseException] = []

    def open_it() -> None:
        start.wait(10)
        try:
            Replica(full).close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == [] and _format(full) == 3 and _held(full) == before
    _all_arrives(world, before["outbox"])


# A number that lies.


@pytest.mark.parametrize(
    ("number", "error", "match"),
    [
        (99, NewerFormat, "has format 99"),
        (2, NewerFormat, "has format 2"),
        (0, Damaged, "says it has format 0"),
        (-1, Damaged, "says it has format -1"),
    ],
)
def test_C068_a_wrong_version_number_is_refused_untouched(
    full: Path, number: int, error: type[SyncError], match: str
) -> None:
    with closing(sqlite3.connect(full)) as db:
        db.execute(f"PRAGMA user_version = {number}")
    _untouched(full, error, match)


@pytest.mark.parametrize(
    ("number", "match"), [(3, "lacks"), (2, "says it has format 2"), (0, "says it has format 0")]
)
def test_C068_a_number_that_does_not_fit_the_tables_is_damage_to_the_later_version_too(
    full: Path, upgraded: Callable[[], None], number: int, match: str
) -> None:
    """Too high for the real shape, or missing; as too low, once the file is up to date."""
    with closing(sqlite3.connect(full)) as db:
        db.execute(f"PRAGMA user_version = {number}")
    held = _held(full)
    upgraded()
    _untouched(full, Damaged, match)
    assert _held(full) == held


def test_C068_a_number_lower_than_the_real_shape_is_damage_and_can_be_put_right(
    world: World, full: Path, upgraded: Callable[[], None]
) -> None:
    before = _held(full)
    upgraded()
    Replica(full).close()
    for number in (1, 2):
        with closing(sqlite3.connect(full)) as db:
            db.execute(f"PRAGMA user_version = {number}")
        _untouched(full, Damaged, f"says it has format {number}")
    with closing(sqlite3.connect(full)) as db:
        db.execute("PRAGMA user_version = 3")
    _all_arrives(world, before["outbox"])


def test_C068_a_newer_file_of_a_server_is_refused_untouched(world: World, full: Path) -> None:
    world.stop()
    with closing(sqlite3.connect(world.data)) as db:
        db.execute("PRAGMA user_version = 3")
    before = world.data.read_bytes()
    with pytest.raises(NewerFormat, match="has format 3"):
        SqliteStore(world.data)
    assert world.data.read_bytes() == before
    assert verify_file(full).all_problems() == []


# No room, no right, much to do.

_UPGRADE = """
import resource, signal, sys
from syncline.client import Replica
from syncline.sync import SyncError
from tests.system.later import become_later
become_later()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    Replica(sys.argv[1]).close()
except SyncError as error:
    print(error.code)
"""


def test_C068_a_disk_that_gets_full_leaves_the_old_file(
    world: World, full: Path, upgraded: Callable[[], None]
) -> None:
    before = _held(full)
    rooms = (1000, 20_000, 33_000, 45_000)
    runs, results = [], []
    for i, room in enumerate(rooms):
        copy = world.folder / f"copy{i}.db"
        shutil.copy(full, copy)
        arguments = [sys.executable, "-c", _UPGRADE, str(copy), str(room)]
        runs.append(subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True))
    for i, run in enumerate(runs):
        said, _ = run.communicate(timeout=60)
        copy = world.folder / f"copy{i}.db"
        assert run.returncode == 0 and _held(copy) == before
        assert (said.strip(), _format(copy)) in [("3105", 1), ("", 3)]
        results.append(_format(copy))
    assert results[:2] == [1, 1]
    upgraded()
    Replica(world.folder / "copy1.db").close()
    assert _held(world.folder / "copy1.db") == before, "with room again it goes through"
    _all_arrives(world, before["outbox"])


def test_C068_a_read_only_file_is_not_migrated_and_said_to_be_one(
    world: World, full: Path, upgraded: Callable[[], None]
) -> None:
    before = _held(full)
    upgraded()

    def read_only(path: Path) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )

    with pytest.raises(ReadOnly, match=r"a\.db"):
        Replica(full, connection_factory=read_only)
    assert _format(full) == 1 and _held(full) == before
    _all_arrives(world, before["outbox"])


def _migrate_many(world: World, upgraded: Callable[[], None], count: int) -> float:
    world.start()
    session = world.session("a")
    with world.replica("a").batch():
        for i in range(count):
            session.put("notes", f"r{i}", {"i": i})
    world.close()
    path = world.folder / "a.db"
    before = _held(path)["outbox"]
    assert len(before) == count
    upgraded()
    began = time.monotonic()
    Replica(path).close()
    took = time.monotonic() - began
    assert _held(path)["outbox"] == before
    _format(path)
    world.session("a")
    world.replica("a").sync_once(world.url, timeout=300)
    world.check()
    return took


def test_C068_thousands_that_wait_are_migrated_and_sent(
    world: World, upgraded: Callable[[], None]
) -> None:
    assert _migrate_many(world, upgraded, 2000) < 10


@pytest.mark.long
@pytest.mark.timeout(900)
def test_C068_a_hundred_thousand_that_wait_are_migrated_and_sent(
    world: World, upgraded: Callable[[], None]
) -> None:
    assert _migrate_many(world, upgraded, 100_000) < 30


# Server and client are of different versions.


@pytest.mark.parametrize("first", ["server", "client"])
def test_C068_whichever_is_upgraded_first_what_waits_goes_out_when_both_are(
    world: World, full: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    before = _held(full)
    session = world.session("a")
    with monkeypatch.context() as patched:
        if first == "server":
            patched.setattr("syncline.server._engine.PROTOCOL_VERSION", 2)
        else:
            patched.setattr("syncline.client._engine.Hello", partial(Hello, version=2))
        with pytest.raises(UnknownVersion, match="this server speaks version"):
            world.sync("a")
        assert len(session.pending()) == PENDING
        assert session.put("notes", "written meanwhile", {}).state.pending
    _all_arrives(world, before["outbox"])


def test_C068_ops_of_an_older_shape_of_the_apps_records_arrive_as_they_were_written(
    world: World,
) -> None:
    """A field was renamed, one changed its type: the log keeps what was written, by field."""
    world.start()
    old, new = world.session("old"), world.session("new")
    old.put("tasks", "t", {"title": "milk", "done": 0})
    world.settle()
    old.patch("tasks", "t", {"done": 1})
    old.put("tasks", "u", {"title": "bread", "done": 0})
    new.put("tasks", "t", {"name": "milk", "done": False, "required": "yes"})
    world.settle()
    t = new.get("tasks", "t")
    assert t == {"name": "milk", "done": False, "required": "yes"}
    assert new.get("tasks", "u") == {"title": "bread", "done": 0}
    (conflict,) = new.conflicts()
    assert (conflict.field, conflict.value) == ("done", 1), "the value that lost is listed"
    world.check()
