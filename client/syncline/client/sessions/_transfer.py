"""A session as lines of JSON, and such lines as a new session.

The first line names the format and where the state comes from, then one line for each living
record and for each event of the conversation, and a last line that counts them, so that a file that
was cut is noticed:

    {"syncline": "session", "format": 1, "session": "…", "epoch": 1, "seq": 12, "hash": "…"}
    {"record": ["notes", "n1"], "fields": {"title": "Tea"}, "at": {"title": 1700000000000000}}
    {"event": "user.message", "payload": {"text": "hi"}, "at": 1700000000000000, "client": "laptop"}
    {"end": {"records": 1, "events": 1}}

``at`` is ``updatedAt`` in microseconds since the Unix epoch, for each field of a record. Bytes are
``{"$bytes": "<hex>"}``, and a map that could be mistaken for that is ``{"$map": {…}}``. Rights, the
checkpoints and the log's own history stay behind, as in a fork.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import uuid_utils

from syncline.sync import (
    CHECKPOINT_COLLECTION,
    HEADER_COLLECTION,
    NUMBER_MAX,
    BadHistory,
    InvalidValue,
    Record,
    Stamp,
    Value,
    check_collection,
    check_fields,
    check_id,
    check_name,
    check_record_id,
    is_id,
)
from syncline.sync.sessions import Key

from .._replica import Replica
from .._session import Session
from ._checkpoints import At, Checkpoints
from ._fork import HEADER, Said, write_session

FORMAT = 1
LINE_CHARS_MAX = 16 << 20


def export_session(session: Session, at: At | None = None) -> Iterator[str]:
    """The lines of a session as it shows, or as it was at a place; without line ends.

    Raises what ``Checkpoints.state_at`` does, before the first line.
    """
    past = Checkpoints(session)
    place, records = past.records_at(at)
    events = past.live_events(at)
    shown = [
        (key, record)
        for key, record in sorted(records.items())
        if record.alive and key[0] != CHECKPOINT_COLLECTION
    ]
    head = {
        "syncline": "session",
        "format": FORMAT,
        "session": session.id,
        "epoch": place.epoch,
        "seq": place.seq,
        "hash": None if place.hash is None else place.hash.hex(),
    }

    def lines() -> Iterator[str]:
        yield _line(head)
        for key, record in shown:
            times = {name: at.updated_at for name, at in sorted(record.stamps.items())}
            yield _line({"record": key, "fields": _plain(record.fields), "at": times})
        for event in events:
            row = {"event": event.type, "payload": _plain(event.payload)}
            yield _line({**row, "at": event.at, "client": event.client})
        yield _line({"end": {"records": len(shown), "events": len(events)}})

    return lines()


def import_session(replica: Replica, lines: Iterable[str], *, label: str | None = None) -> Session:
    """Make a new session of exported lines: all of it, or nothing.

    It is a session of its own, with an id of its own, whose header says where it comes from.
    Raises BadHistory (3110) for what is no export, naming the line, and TooLarge (3011) for a
    record that no op can hold; nothing is stored then.
    """
    read = _read(lines)
    own: dict[str, Value] = {"imported_from": dict(read.origin)}
    if label is not None:
        own["label"] = label
    core = replica._core
    with core.batch():
        return write_session(core, str(uuid_utils.uuid7()), read.records, read.events, own)


# Writing.


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, dict):
        made = {key: _plain(inner) for key, inner in value.items()}
        return {"$map": made} if made.keys() in ({"$bytes"}, {"$map"}) else made
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


# Reading.


class _Read(NamedTuple):
    origin: dict[str, Value]
    records: dict[Key, Record]
    events: list[Said]


def _read(lines: Iterable[str]) -> _Read:
    read: _Read | None = None
    ended = False
    number = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            if ended:
                raise ValueError("stands behind the end")
            row = _parsed(line)
            if read is None:
                read = _Read(_head(row), {}, [])
            elif "record" in row:
                key, record = _record(row)
                if key in read.records:
                    raise ValueError(f"has the record {key[0]}/{key[1]} again")
                read.records[key] = record
            elif "event" in row:
                read.events.append(_event(row))
            elif "end" in row:
                count = {"records": len(read.records), "events": len(read.events)}
                if row["end"] != count:
                    raise ValueError(f"says {row['end']}, but there are {count}")
                ended = True
            else:
                raise ValueError("is no record, no event and no end")
        except (ValueError, TypeError, KeyError, RecursionError, InvalidValue) as error:
            reason = error.reason if isinstance(error, InvalidValue) else _said(error)
            raise BadHistory(f"line {number} {reason}", line=number) from error
    if read is None or not ended:
        raise BadHistory(f"the export ends at line {number} without its end: it was cut")
    return read


def _said(error: Exception) -> str:
    match error:
        case json.JSONDecodeError():
            return f"is not JSON: {error.msg}"
        case KeyError():
            return f"lacks {error.args[0]!r}"
        case RecursionError():
            return "is nested too deep"
        case _:
            return str(error)


def _parsed(line: str) -> dict[str, Any]:
    if len(line) > LINE_CHARS_MAX:
        raise ValueError(f"has more than {LINE_CHARS_MAX} characters")
    row = json.loads(line, object_pairs_hook=_object, parse_constant=_no_constant)
    if type(row) is not dict:
        raise ValueError("is no JSON object")
    return row


def _object(pairs: list[tuple[str, Any]]) -> Any:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("names a key twice")
    return made


def _values(shown: Any) -> Any:
    """What ``_plain`` made, back."""
    if isinstance(shown, list):
        return [_values(inner) for inner in shown]
    if not isinstance(shown, dict):
        return shown
    match shown:
        case {"$bytes": str(text)} if len(shown) == 1:
            return bytes.fromhex(text)
        case {"$map": dict(inner)} if len(shown) == 1:
            return {key: _values(value) for key, value in inner.items()}
    return {key: _values(value) for key, value in shown.items()}


def _no_constant(name: str) -> Any:
    raise ValueError(f"has {name}, which is no JSON")


def _head(row: dict[str, Any]) -> dict[str, Value]:
    if row.get("syncline") != "session":
        raise ValueError("is not the first line of an exported session")
    if row.get("format") != FORMAT:
        raise ValueError(f"says format {row.get('format')!r}; this version reads {FORMAT}")
    check_id(row["session"], "session id")
    if type(row["epoch"]) is not int or type(row["seq"]) is not int:
        raise ValueError("has no epoch and seq")
    hash_ = None if row["hash"] is None else bytes.fromhex(row["hash"])
    return {
        "session": row["session"],
        "epoch": row["epoch"],
        "seq": row["seq"],
        "hash": hash_,
    }


def _record(row: dict[str, Any]) -> tuple[Key, Record]:
    collection, id_ = row["record"]
    fields = check_fields(_values(row["fields"]))
    times = row["at"]
    if type(times) is not dict or times.keys() != fields.keys():
        raise ValueError("has not one time for each field")
    stamps = {name: Stamp(_time(at), "", 1) for name, at in times.items()}
    life = max(stamps.values(), default=Stamp(0, "", 1))
    record = Record(fields, stamps, None, True, life, {})
    if collection == HEADER_COLLECTION:
        if (collection, id_) != HEADER:
            raise ValueError(f"has the record {id_!r} beside the header")
        return HEADER, record
    return (check_collection(collection), check_record_id(id_)), record


def _event(row: dict[str, Any]) -> Said:
    if not is_id(row.get("client", "x")):
        raise ValueError("names a client that is none")
    payload = check_fields(_values(row["payload"]))
    return Said(check_name(row["event"], "event type"), payload, _time(row["at"]))


def _time(at: object) -> int:
    if type(at) is not int or not 0 <= at < NUMBER_MAX:
        raise ValueError(f"has {at!r} where a time in microseconds is due")
    return at
