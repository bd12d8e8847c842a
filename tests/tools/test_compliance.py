"""The commands erase, ledger and anchor, and a tail that was cut off."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from syncline.cli.__main__ import cli
from syncline.cli.verify import verify_file
from syncline.client import Replica
from syncline.server import SqliteStore, SyncServer
from syncline.sync import BadHistory, Damaged, LegalHold, NotAReplica, NotFound


def run(*args: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, args, input=stdin)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "server.db"
    with SyncServer(SqliteStore(path), port=0) as server:
        for name in ("ann", "bob"):
            with Replica(tmp_path / f"{name}.db", client_id=name) as replica:
                session = replica.create_session(session_id="s")
                session.put("notes", "n", {"text": f"by {name}"})
                replica.sync_once(server.url)
    return path


def test_erase_asks_first_and_says_what_it_took(data: Path) -> None:
    asked = run("erase", "--data", str(data), "--subject", "ann", stdin="n\n")
    assert asked.exit_code == 1 and "for good" in asked.output
    done = run("erase", "--data", str(data), "--subject", "ann", "--yes", "--json")
    assert json.loads(done.output) == {
        "data": str(data),
        "clients": ["ann"],
        "sessions": 1,
        "entries": 3,
        "records": 0,
        "conflicts": 1,
        "identities": 1,
    }
    again = run("erase", "--data", str(data), "--subject", "ann", "--yes")
    assert isinstance(again.exception, NotFound)


def test_a_held_session_is_not_erased(data: Path) -> None:
    refused = run("erase", "--data", str(data), "--subject", "ann", "--hold", "s", "--yes")
    assert isinstance(refused.exception, LegalHold)
    assert b"by ann" in data.read_bytes()


def test_the_ledger_is_told_with_and_without_who_it_was(data: Path) -> None:
    rows = json.loads(run("ledger", str(data), "--json").output)
    assert [row["n"] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[0]["kind"] == "sign_in" and rows[0]["identity"]["client"] == "ann"
    bare = json.loads(run("ledger", str(data), "--without-identities", "--json").output)
    assert {row["identity"] for row in bare} == {None}
    after = json.loads(run("ledger", str(data), "--after", "1", "--json").output)
    assert after == rows[1:]
    assert "sign_in" in run("ledger", str(data)).output


def _cut_tail(path: Path, table: str) -> None:
    """As somebody does who holds the whole file, and mends all that would show it."""
    with closing(sqlite3.connect(path)) as db, db:
        (trigger,) = db.execute(
            "SELECT sql FROM sqlite_master WHERE name = ?", (f"{table}_keeps",)
        ).fetchone()
        db.execute(f"DROP TRIGGER {table}_keeps")
        column = {"ledger": "n", "log": "seq"}[table]
        db.execute(f"DELETE FROM {table} WHERE {column} = (SELECT max({column}) FROM {table})")
        if table == "ledger":
            db.execute("DELETE FROM ledger_identities WHERE n > (SELECT max(n) FROM ledger)")
        db.execute(trigger)


@pytest.mark.parametrize("table", ["ledger", "log"])
def test_an_anchor_shows_a_tail_that_was_cut(data: Path, tmp_path: Path, table: str) -> None:
    anchors = tmp_path / "anchors.jsonl"
    assert run("anchor", str(data), "--to", str(anchors)).exit_code == 0
    assert run("verify", str(data), "--anchor", str(anchors)).exit_code == 0
    _cut_tail(data, table)
    found = run("verify", str(data), "--anchor", str(anchors), "--json")
    assert isinstance(found.exception, Damaged)
    assert any(f"{table} row" in problem for problem in json.loads(found.output)["problems"])


def test_a_tail_of_the_ledger_without_a_word_in_the_log_shows_by_the_anchor_alone(
    data: Path, tmp_path: Path
) -> None:
    anchors = tmp_path / "anchors.jsonl"
    with SyncServer(SqliteStore(data), port=0) as server, Replica(tmp_path / "ann.db") as ann:
        ann.sync_once(server.url)
    assert run("anchor", str(data), "--to", str(anchors)).exit_code == 0
    _cut_tail(data, "ledger")
    assert verify_file(data).all_problems() == []
    found = run("verify", str(data), "--anchor", str(anchors))
    assert isinstance(found.exception, Damaged) and "since the anchor" in found.output


def test_what_is_no_anchor_or_no_server_is_named(data: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text(run("anchor", str(data)).output + "{}\n")
    found = run("verify", str(data), "--anchor", str(lines))
    assert isinstance(found.exception, BadHistory) and "line 2" in str(found.exception)
    assert isinstance(run("anchor", str(tmp_path / "ann.db")).exception, NotAReplica)
    assert isinstance(run("anchor", str(tmp_path / "none")).exception, NotFound)
    missing = run("verify", str(data), "--anchor", str(tmp_path / "none"))
    assert isinstance(missing.exception, NotFound)
