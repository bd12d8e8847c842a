"""``verify_file`` on a server's file: a good one holds, and no byte can change unseen."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tools.damage import cells, flipped, forge_log, run_sql, write_cell
from tests.tools.server_files import NOW, Device, World, build_server

from syncline.cli.verify import verify_file
from syncline.server import SqliteStore, restore
from syncline.sync import Dot, Entry, Outcome, Patch, Put, VoidOp, pack

GUARDED = {
    "sessions": ("genesis", "hash"),
    "clients": ("running",),
    "log": ("hash", "entry"),
    "records": ("state",),
    "conflicts": ("conflict",),
    "refusals": ("digest",),
    "ledger": ("hash", "row"),
    "ledger_identities": ("salt", "identity"),
}
SALT = bytes(range(16))
TWICE = pack([[1, "todo", "new", {}, {}], [2, "todo", "new", {}, {}]])
EVENT = pack([[4, "said", {}]])
REFUSAL = "VALUES (1, 'ann', {}, 3002, 'no', x'80', zeroblob(32), NULL, NULL)"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "server.db"
    build_server(path)
    return path


@pytest.fixture
def copied(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(good, tmp_path / "copy.db"))


@pytest.mark.parametrize("seed", range(6))
def test_a_file_that_the_server_wrote_holds(tmp_path: Path, seed: int) -> None:
    build_server(tmp_path / "server.db", seed, steps=120)
    report = verify_file(tmp_path / "server.db")
    assert report.all_problems() == []
    assert (report.ok, report.kind) == (True, "server")
    first, second = report.sessions
    assert (first.id, second.id) == ("first", "second")
    assert first.seq == first.entries > 60
    assert first.concurrent is not None and first.lost is not None
    assert first.concurrent > first.lost > 0


def test_the_good_file_has_something_of_everything_that_is_guarded(good: Path) -> None:
    assert {(cell.table, cell.column) for cell in cells(good, GUARDED)} == {
        (table, column) for table, columns in GUARDED.items() for column in columns
    }


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), position=st.integers(0, 4095), mask=st.integers(1, 255))
def test_no_byte_of_a_hash_entry_state_or_ledger_row_changes_unseen(
    good: Path, tmp_path: Path, data: st.DataObject, position: int, mask: int
) -> None:
    column = data.draw(st.sampled_from([(t, c) for t, names in GUARDED.items() for c in names]))
    cell = data.draw(st.sampled_from(cells(good, {column[0]: (column[1],)})))
    path = Path(shutil.copy(good, tmp_path / "flipped.db"))
    write_cell(path, cell, flipped(cell.data, position, mask))
    report = verify_file(path)
    assert not report.ok
    assert any(cell.table in problem or "session" in problem for problem in report.all_problems())


def test_an_integer_in_another_width_does_not_pass_for_the_same_bytes(copied: Path) -> None:
    """0xcf and 0xd3 both introduce eight bytes: no hash over values can tell them apart."""
    cell = next(cell for cell in cells(copied, {"log": ("entry",)}) if b"\xcf" in cell.data[:40])
    write_cell(copied, cell, cell.data.replace(b"\xcf", b"\xd3", 1))
    problems = verify_file(copied).all_problems()
    assert any("is not written in its shortest form" in problem for problem in problems)


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
    assert report.kind in ("server", "unknown")
    assert report.ok or report.all_problems()


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM log WHERE session = 1 AND seq = 3", "log row 4 follows 2"),
        ("DELETE FROM log WHERE session = 1 AND seq = (SELECT max(seq) FROM log)", "log ends at"),
        ("DELETE FROM records WHERE id = 'r1'", "records has no row for 'todo'/'r1'"),
        ("DELETE FROM conflicts", "conflicts has no row for conflict"),
        ("DELETE FROM clients WHERE client = 'bob'", "clients has no row for 'bob'"),
        ("DELETE FROM refusals", "leaves out numbers of"),
        ("DELETE FROM ledger WHERE n = 2", "ledger row 3 follows 1"),
        ("DELETE FROM ledger", "the ledger has no row for the value of"),
        ("UPDATE clients SET n = n + 1", "the log and the refusals end elsewhere"),
        ("UPDATE records SET seq = 1", "says that seq 1 touched it last"),
        ("UPDATE sessions SET label = 'Other'", "the session's label is not that of its header"),
        ("UPDATE sessions SET epoch = 7", "the session's epoch is 7"),
        ("UPDATE log SET client = 'eve', n = seq", "is filed under another op"),
        ("UPDATE log SET events = events + 1", "miscounts its events"),
        ("UPDATE log SET session = 9 WHERE session = 2", "which is none"),
        ("UPDATE store SET value = 'x' WHERE key = 'store_id'", "the genesis is not that of"),
        ("UPDATE refusals SET code = 3019", "ledger and refusals disagree"),
        ("UPDATE records SET state = 'text'", "has a state of the wrong type"),
        ("UPDATE log SET entry = x'c1'", "is not MessagePack"),
        ("UPDATE conflicts SET closed = 2", "is neither open nor closed"),
        ("INSERT INTO ledger_identities VALUES (9999, zeroblob(16), x'80')", "no ledger row"),
        (f"INSERT INTO refusals {REFUSAL.format(1)}", "which was refused"),
        (f"INSERT INTO refusals {REFUSAL.format(9999)}", "above the client's last number"),
        ("UPDATE devices SET incarnation = 0", "has incarnation 0"),
        ("DROP TABLE refusals", "table refusals is missing"),
        ("ALTER TABLE log RENAME COLUMN entry TO other", "log cannot be read"),
    ],
)
def test_an_edit_by_hand_is_named(copied: Path, statement: str, problem: str) -> None:
    run_sql(copied, "INSERT INTO devices (client, incarnation) VALUES ('ann', 3)", statement)
    report = verify_file(copied)
    assert not report.ok
    assert any(problem in one for one in report.all_problems()), report.all_problems()


def _first(path: Path, outcome: Outcome) -> Entry:
    """The first entry of one change that came out like this."""
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT entry FROM log WHERE session = 1 ORDER BY seq").fetchall()
    entries = (Entry.decode(data) for (data,) in rows)
    return next(e for e in entries if e.outcome is outcome and len(e.read()) == 1)


@pytest.mark.parametrize(
    ("outcome", "change", "problem"),
    [
        (Outcome.LOST, {"outcome": Outcome.WON}, "says outcome 2, not 3"),
        (Outcome.MERGED, {"effects": pack([[NOW * 2], None])}, "has another effect on"),
        (
            Outcome.MERGED,
            {"effects": pack([[5], None])},
            "stamp that is not above what its context",
        ),
        (Outcome.LOST, {"n": 1}, "repeats or reorders op 1"),
        (Outcome.APPLIED, {"seq": 77}, "holds the entry of seq 77"),
        (Outcome.APPLIED, {"n": 999}, "leaves out numbers of"),
        (Outcome.APPLIED, {"epoch": 2}, "an epoch above that of the store"),
        (Outcome.APPLIED, {"body": pack([[9]])}, "a change of unknown kind or shape"),
        (Outcome.APPLIED, {"body": pack([[3, "a", "b", {"c": 0}]])}, "a version vector of the"),
        (Outcome.APPLIED, {"body": pack([[2, "no", "where", {}, {}]])}, "that is not there"),
        (Outcome.APPLIED, {"effects": pack([[], None])}, "stamps that do not fit its changes"),
        (Outcome.APPLIED, {"body": TWICE, "effects": pack([[5, 5], None])}, "one record twice"),
        (Outcome.APPLIED, {"body": EVENT, "effects": pack([[5], [[]]])}, "where nothing is settl"),
        (Outcome.APPLIED, {"salt": bytes(16)}, "does not have the running hash"),
    ],
)
def test_a_forged_entry_whose_hashes_are_right_is_found_by_settling_it_again(
    copied: Path, outcome: Outcome, change: dict[str, object], problem: str
) -> None:
    seq = _first(copied, outcome).seq
    forge_log(copied, seq, lambda entry: entry._replace(**change))  # type: ignore[arg-type]
    problems = verify_file(copied).all_problems()
    assert not any("hash that its bytes give" in one for one in problems)
    assert any(problem in one for one in problems), problems


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 5) | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=12,
)


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(part=st.sampled_from(["body", "effects", "effect", "change"]), value=PLAIN)
def test_any_values_at_all_inside_of_a_forged_entry_are_survived(
    good: Path, tmp_path: Path, part: str, value: object
) -> None:
    path = Path(shutil.copy(good, tmp_path / "forged.db"))
    seq = _first(path, Outcome.LOST).seq
    content = {
        "body": {"body": pack(value)},
        "change": {"body": pack([[2, "todo", "r0", value, value]])},
        "effects": {"effects": pack(value)},
        "effect": {"effects": pack([[NOW * 2], [[1, {}, value, True, None, value, value]]])},
    }[part]
    forge_log(path, seq, lambda entry: entry._replace(**content))  # type: ignore[arg-type]
    assert not verify_file(path).ok


def test_an_entry_stamped_below_what_it_overwrote_is_found(tmp_path: Path) -> None:
    world, device = World(tmp_path / "server.db"), Device("ann")
    device.write(SALT, NOW, Put("todo", "r0", {}, {"a": 1}))
    device.write(SALT[::-1], NOW, Patch("todo", "r0", {"ann": 1}, {"a": 2}))
    world.sync(device, "s")
    world.store.close()
    forge_log(tmp_path / "server.db", 2, lambda entry: entry._replace(effects=pack([[5], None])))
    problem = "log row 2 has a stamp that is not above what its context had seen"
    assert f"session 's': {problem}" in verify_file(tmp_path / "server.db").all_problems()


def test_an_epoch_that_falls_back_is_found(copied: Path) -> None:
    run_sql(copied, "UPDATE store SET value = 2 WHERE key = 'epoch'")
    forge_log(copied, 3, lambda entry: entry._replace(epoch=2))
    problems = verify_file(copied).all_problems()
    assert "session 'first': log row 4 falls back to epoch 1" in problems


def test_a_lost_value_that_only_the_ledger_knows_is_found(copied: Path) -> None:
    with closing(sqlite3.connect(copied)) as db, db:
        n, previous = db.execute("SELECT n, hash FROM ledger ORDER BY n DESC LIMIT 1").fetchone()
        stamps = {"loser": [1, "ann", 1], "winner": [2, "bob", 1]}
        facts = {"seq": 1, "collection": "todo", "id": "r0", "field": "a", **stamps}
        row = pack([n + 1, NOW, "lost", "first", facts, bytes(32)])
        values = (n + 1, sha256(b"le" + previous + row).digest(), row)
        db.execute("INSERT INTO ledger VALUES (?, ?, ?)", values)
    assert verify_file(copied).all_problems() == [
        "the ledger says that a value of 'todo'/'r0' 'a' at seq 1 of session 'first' lost, "
        "the log does not"
    ]


def test_void_numbers_and_repeats_under_a_new_number_hold(tmp_path: Path) -> None:
    world = World(tmp_path / "server.db")
    first, copy = Device("ann"), Device("ann2")
    op = first.write(SALT, NOW, Put("todo", "r0", {}, {"a": 1}))
    refused = first.write(bytes(16), NOW, Patch("todo", "missing", {}, {"a": 1}))
    world.sync(first, "s")
    for former in (op, refused):
        copy.n += 1
        changed = type(former)(
            copy.n, former.salt, former.stamps, former.body, Dot("ann", former.n)
        )
        copy.outbox.append(changed)
    copy.n += 1
    copy.outbox.append(VoidOp(copy.n, bytes(range(32))))
    answers = world.sync(copy, "s")
    assert [answer.code for answer in answers] == [0, 3002, 0]
    copy.write(SALT[::-1], NOW, Put("todo", "r1", {}, {}))
    world.sync(copy, "s")
    world.store.close()
    report = verify_file(tmp_path / "server.db")
    assert report.all_problems() == []
    assert report.sessions[0].entries == 2


def test_a_context_beyond_the_log_is_settled_as_far_as_the_log_goes(tmp_path: Path) -> None:
    """After a restore, contexts name ops that the log does not hold yet, or never will."""
    world = World(tmp_path / "server.db")
    ann, bob = Device("ann"), Device("bob")
    ann.write(SALT, NOW, Put("todo", "r0", {}, {"a": 1}))
    world.sync(ann, "s")
    bob.write(b"b" * 16, NOW + 5, Patch("todo", "r0", {"ann": 3}, {"b": 2}))
    world.sync(bob, "s")
    ann.outbox.append(VoidOp(2, bytes(32)))
    ann.n = 2
    world.sync(ann, "s")
    bob.write(b"c" * 16, NOW + 9, Patch("todo", "r0", {"ann": 3, "bob": 1}, {"b": 3}))
    bob.write(b"d" * 16, NOW + 10, Put("todo", "r0", {"ann": 4, "bob": 2}, {"c": 1}))
    world.sync(bob, "s")
    world.store.close()
    assert verify_file(tmp_path / "server.db").all_problems() == []


def test_a_restored_file_goes_on_in_a_new_epoch_and_holds(copied: Path) -> None:
    restore(copied)
    world = World(copied)
    device = Device("dee")
    device.write(SALT, NOW, Put("note", "new", {}, {"a": 1}))
    world.sync(device, "first")
    world.store.close()
    report = verify_file(copied)
    assert report.all_problems() == []
    assert [session.epoch for session in report.sessions] == [2, 1]


def test_a_file_in_use_is_read_at_one_moment(copied: Path) -> None:
    store = SqliteStore(copied)
    try:
        assert verify_file(copied).ok
    finally:
        store.close()


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\x00", b"x" * 5000])
def test_what_is_no_syncline_file_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    report = verify_file(path)
    assert (report.kind, report.ok) == ("unknown", False)


def test_a_missing_file_is_a_problem_and_is_not_made(tmp_path: Path) -> None:
    report = verify_file(tmp_path / "nothing.db")
    assert not report.ok
    assert list(tmp_path.iterdir()) == []


HEADER = ("$session", "header")


@pytest.fixture
def deleted(tmp_path: Path) -> Path:
    """A session whose last entry deletes it."""
    world, device = World(tmp_path / "server.db"), Device("ann")
    device.write(SALT, NOW, Patch(*HEADER, {}, {"label": "x"}))
    device.write(SALT[:8] * 2, NOW, Put("todo", "r0", {}, {"a": 1}))
    device.write(SALT[::-1], NOW, Patch(*HEADER, {"ann": 1}, {"status": "deleted"}))
    world.sync(device, "s")
    world.store.close()
    return tmp_path / "server.db"


def test_SD3_a_deleted_session_is_whole_and_an_entry_behind_its_end_is_found(
    deleted: Path,
) -> None:
    assert verify_file(deleted).all_problems() == []
    # The same with the deletion before the note.
    ended = pack([[2, *HEADER, {"ann": 1}, {"status": "deleted"}]])
    forge_log(deleted, 2, lambda entry: entry._replace(body=ended))
    problem = "log row 3 follows row 2, which deleted the session"
    assert f"session 's': {problem}" in verify_file(deleted).all_problems()


def test_SD2_a_deletion_below_the_newest_stamp_is_found(deleted: Path) -> None:
    # It claims to be concurrent with the label, and to be older.
    ended = pack([[2, *HEADER, {}, {"status": "deleted"}]])
    effects = pack([[NOW - 1], None])
    forge_log(deleted, 3, lambda entry: entry._replace(body=ended, effects=effects))
    problem = "log row 3 deletes the session with an old stamp"
    assert f"session 's': {problem}" in verify_file(deleted).all_problems()
