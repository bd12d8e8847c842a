"""Sessions as lines of JSON: what goes out comes in equal, and anything else is refused whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from tests.client.wire import SECOND, Wire
from tests.sync.strategies import FIELDS

from syncline.client import Replica, Session
from syncline.client.sessions import Checkpoints, export_session, import_session
from syncline.sync import HEADER_COLLECTION, HEADER_ID, BadHistory, TooLarge, same


def made(wire: Wire) -> Session:
    session = wire.open("ann").create_session("mine", session_id="s")
    session.put("notes", "n1", {"a": 1, "raw": b"\x00\xff", "odd": {"$bytes": "x"}})
    wire.now += SECOND
    session.patch("notes", "n1", {"a": 2.0})
    session.put("notes", "gone", {})
    session.delete("notes", "gone")
    session.append("said", {"text": "hello", "odd": {"$map": {"$bytes": "00"}}})
    session.patch(HEADER_COLLECTION, HEADER_ID, {"owner": "ann", "topic": "tea"})
    Checkpoints(session).create("point")
    return session


def test_an_export_says_what_shows_with_its_times(wire: Wire) -> None:
    session = made(wire)
    rows = [json.loads(line) for line in export_session(session)]
    head, header, note, *events, end = rows
    assert head == {
        "syncline": "session",
        "format": 1,
        "session": "s",
        "epoch": 0,
        "seq": 0,
        "hash": None,
    }
    assert header["record"] == ["$session", "header"] and header["fields"]["label"] == "mine"
    assert note == {
        "record": ["notes", "n1"],
        "fields": {"a": 2.0, "raw": {"$bytes": "00ff"}, "odd": {"$map": {"$bytes": "x"}}},
        "at": {"a": wire.now, "odd": wire.now - SECOND, "raw": wire.now - SECOND},
    }
    assert [event["event"] for event in events] == ["said", "session.checkpoint"]
    assert end == {"end": {"records": 2, "events": 2}}


def test_what_is_imported_is_the_same_and_a_session_of_its_own(wire: Wire) -> None:
    session = made(wire)
    bob = wire.open("bob")
    lines = list(export_session(session))
    copy = import_session(bob, lines, label="theirs")
    assert copy.id != "s" and dict(copy.records("notes")) == dict(session.records("notes"))
    assert same(copy.get("notes", "n1"), session.get("notes", "n1"))
    assert [(e.type, e.payload, e.at) for e in copy.events()] == [
        (e.type, e.payload, e.at) for e in session.events() if e.type == "said"
    ]
    header = copy.get(HEADER_COLLECTION, HEADER_ID)
    assert header == {
        "label": "theirs",
        "topic": "tea",
        "status": "active",
        "created_at": wire.now,
        "imported_from": {"session": "s", "epoch": 0, "seq": 0, "hash": None},
    }
    again = list(export_session(copy))
    assert [line for line in again if '["notes"' in line] == [
        line for line in lines if '["notes"' in line
    ]
    assert import_session(bob, lines).label == "mine"


def test_an_export_of_the_past_and_of_a_deleted_session(wire: Wire) -> None:
    session = made(wire)
    ann = wire.open("ann")
    wire.sync(ann)
    then = import_session(ann, export_session(session, 2))
    assert then.get("notes", "n1") == {"a": 1, "raw": b"\x00\xff", "odd": {"$bytes": "x"}}
    ann.delete_session("s")
    copy = import_session(ann, export_session(session))
    assert not copy.deleted and copy.get("notes", "n1") == session.get("notes", "n1")


@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(fields=FIELDS)
def test_any_values_come_back_equal_and_of_the_same_types(
    wire: Wire, fields: dict[str, Any]
) -> None:
    replica = wire.open("ann")
    session = replica.create_session()
    session.put("notes", "n", fields)
    session.append("said", fields)
    copy = import_session(replica, export_session(session))
    assert same(copy.get("notes", "n"), fields)
    assert same(copy.events()[0].payload, fields)


HEAD = '{"syncline":"session","format":1,"session":"s","epoch":0,"seq":0,"hash":null}'
NOTE = '{"record":["notes","n"],"fields":{"a":1},"at":{"a":1}}'
END = '{"end":{"records":1,"events":0}}'


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "ends at line 0 without its end"),
        ([HEAD, NOTE], "ends at line 2 without its end"),
        ([NOTE, END], "line 1 is not the first line of an exported session"),
        ([HEAD.replace("1", "2", 1), END], "line 1 says format 2; this version reads 1"),
        ([HEAD.replace('"s"', '"a b"')], "line 1 session id .* is not an id"),
        ([HEAD.replace("null", '"xyz"')], "line 1 non-hexadecimal number"),
        ([HEAD, NOTE, END.replace("0", "1")], "line 3 says .* but there are"),
        ([HEAD, NOTE, NOTE, END], "line 3 has the record notes/n again"),
        ([HEAD, NOTE, END, NOTE], "line 4 stands behind the end"),
        ([HEAD, "{"], "line 2 is not JSON"),
        ([HEAD, "[]"], "line 2 is no JSON object"),
        ([HEAD, "{}"], "line 2 is no record, no event and no end"),
        ([HEAD, "[" * 100_000], "line 2 is nested too deep"),
        ([HEAD, NOTE.replace('{"a":1}', '{"a":NaN}', 1)], "line 2 has NaN"),
        ([HEAD, NOTE.replace('{"a":1}', '{"a":1,"a":2}', 1)], "line 2 names a key twice"),
        ([HEAD, NOTE.replace('"at":{"a":1}', '"at":{}')], "line 2 has not one time"),
        ([HEAD, NOTE.replace('"at":{"a":1}', '"at":{"a":-1}')], "line 2 has -1 where a time"),
        ([HEAD, NOTE.replace(',"at":{"a":1}', "")], "line 2 lacks 'at'"),
        ([HEAD, NOTE.replace('"notes"', '"$else"')], "line 2 collection .* is reserved"),
        ([HEAD, NOTE.replace('"notes"', '"$session"')], "line 2 .* beside the header"),
        ([HEAD, NOTE.replace('"a":1', '"$a":1')], "line 2 .* is reserved"),
        ([HEAD, NOTE.replace("{", '{"a":18446744073709551616}', 1)], "line 2 "),
        ([HEAD, '{"event":"said","payload":{},"at":true}'], "line 2 has True where a time"),
        ([HEAD, '{"event":"said","payload":{},"at":1,"client":"?"}'], "line 2 names a client"),
        ([HEAD, '{"event":"","payload":{},"at":1}'], "line 2 event type must not be empty"),
    ],
)
def test_what_is_no_export_is_refused_and_nothing_is_stored(
    wire: Wire, lines: list[str], problem: str
) -> None:
    replica = wire.open("ann")
    with pytest.raises(BadHistory, match=problem):
        import_session(replica, lines)
    assert replica.sessions() == []


def test_empty_lines_are_passed_over(wire: Wire) -> None:
    copy = import_session(wire.open("ann"), [HEAD, "", NOTE + "\n", " \n", END, "\n"])
    assert copy.get("notes", "n") == {"a": 1}


def test_a_record_that_no_op_can_hold_is_refused_and_nothing_is_stored(folder: Path) -> None:
    big = json.dumps({"record": ["notes", "n"], "fields": {"a": "x" * (2 << 20)}, "at": {"a": 1}})
    with Replica(folder / "r.db", durability="normal") as replica:
        with pytest.raises(TooLarge):
            import_session(replica, [HEAD, big, END])
        assert replica.sessions() == []
