"""``replica.db``: everything to be read, nothing to be written, whatever things are called."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest
from tests.client.wire import NOW, Wire, state_of


def _rows(db: Any, name: str) -> list[dict[str, Any]]:
    return sorted(db[name].rows, key=lambda row: (row["$session"], row["$id"]))


def test_each_collection_is_a_view_of_all_sessions_with_the_fields_as_columns(wire: Wire) -> None:
    ann = wire.open("ann")
    ann.session("s").put("notes", "a", {"title": "x", "n": 1})
    ann.session("t").put("notes", "b", {"title": "y"})
    ann.session("t").put("gone", "c", {"x": 1})
    ann.session("t").delete("gone", "c")
    assert _rows(ann.db, "notes") == [
        {"$session": "s", "$id": "a", "n": 1, "title": "x", "$updated_at": NOW,
         "$fields": '{"n": 1, "title": "x"}'},
        {"$session": "t", "$id": "b", "n": None, "title": "y", "$updated_at": NOW,
         "$fields": '{"title": "y"}'},
    ]  # fmt: skip
    assert _rows(ann.db, "gone") == []
    assert sorted(ann.db.view_names()) == ["gone", "notes"]


def test_values_that_sql_has_no_type_for_come_as_json_and_bytes_as_a_blob(wire: Wire) -> None:
    ann = wire.open("ann")
    value = {"list": [1, {"é": None}], "map": {"b": b"\x01"}, "bytes": b"\x00\xff", "bool": True,
             "float": 0.5, "int": -(2**63), "none": None}  # fmt: skip
    ann.session("s").put("n", "r", value)
    (row,) = ann.db["n"].rows
    assert json.loads(row["list"]) == [1, {"é": None}]
    assert json.loads(row["map"]) == {"b": {"$bytes": "01"}}
    assert (row["bytes"], row["bool"], row["float"]) == (b"\x00\xff", 1, 0.5)
    assert (row["int"], row["none"]) == (-(2**63), None)
    assert json.loads(row["$fields"])["list"] == [1, {"é": None}]


def test_views_follow_what_is_written_here_and_what_comes_from_others(wire: Wire) -> None:
    ann, bob = wire.open("ann"), wire.open("bob")
    db = bob.db
    ann.session("s").put("n", "r", {"x": 1})
    wire.sync(ann)
    wire.sync(bob)
    assert [row["x"] for row in db["n"].rows] == [1]
    bob.session("s").patch("n", "r", {"y": 2})
    assert [(row["x"], row["y"]) for row in db["n"].rows] == [(1, 2)]
    assert [tuple(r.values()) for r in db.query('SELECT x FROM n WHERE "$session" = ?', ["s"])] == [
        (1,)
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM syncline_outbox",
        "UPDATE syncline_records SET alive = 0",
        "CREATE TABLE mine (x)",
        "DROP VIEW n",
        "INSERT INTO n VALUES (1)",
        "PRAGMA user_version = 9",
    ],
)
def test_nothing_can_be_written_through_it(wire: Wire, statement: str) -> None:
    ann = wire.open("ann")
    ann.session("s").put("n", "r", {"x": 1})
    with pytest.raises(sqlite3.OperationalError):
        ann.db.conn.execute(statement)
    assert ann.session("s").get("n", "r") == {"x": 1}
    assert ann.status().pending == 1


NAMES = [
    'with "quotes"', "it's", "semi; DROP TABLE syncline_outbox; --", "syncline_outbox",
    "SYNCLINE_x", "sqlite_master", "Case", "case", "CASE", "ünïcödé", "[brackets]", "`ticks`",
    "select", "1st", " ", "a.b", "case:1", "%", "🦆",
]  # fmt: skip


def test_collections_and_fields_of_any_name_have_their_view_and_column(wire: Wire) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    for i, name in enumerate(NAMES):
        session.put(name, f"r{i}", {name: i, "plain": name})
    with ann._core.database.reading() as db:
        views = dict(db.execute("SELECT collection, name FROM syncline_views"))
    assert sorted(views) == sorted(NAMES)
    assert len({view.lower() for view in views.values()}) == len(NAMES)
    for i, name in enumerate(NAMES):
        (row,) = ann.db[views[name]].rows
        assert (row["$id"], row["plain"], row[name]) == (f"r{i}", name, i)
    assert {name: views[name] for name in ("Case", "semi; DROP TABLE syncline_outbox; --")} == {
        name: name for name in ("Case", "semi; DROP TABLE syncline_outbox; --")
    }
    assert ann.status().pending == len(NAMES)
    wire.sync(ann)
    bob = wire.open("bob")
    wire.sync(bob)
    assert state_of(bob, "s") == wire.state("s")
    assert len(bob.db.view_names()) == len(NAMES)


def test_fields_that_differ_in_case_alone_are_all_in_fields(wire: Wire) -> None:
    ann = wire.open("ann")
    ann.session("s").put("n", "r", {"Title": 1, "title": 2})
    (row,) = ann.db["n"].rows
    assert json.loads(row["$fields"]) == {"Title": 1, "title": 2}
    assert sorted(value for key, value in row.items() if "itle" in key) == [1, 2]


def test_more_fields_than_a_view_has_columns_are_in_fields(wire: Wire) -> None:
    ann = wire.open("ann")
    fields = {f"f{i:04}": i for i in range(700)}
    ann.session("s").put("n", "r", fields)
    (row,) = ann.db["n"].rows
    assert json.loads(row["$fields"]) == fields
    assert row["f0499"] == 499 and "f0500" not in row


def test_a_write_that_is_rolled_back_leaves_no_view(wire: Wire) -> None:
    ann = wire.open("ann")
    session = ann.session("s")
    with pytest.raises(KeyError), ann.batch():
        session.put("n", "r", {"x": 1})
        raise KeyError
    assert ann.db.view_names() == []
    session.put("n", "r", {"x": 1})
    assert [row["x"] for row in ann.db["n"].rows] == [1]
