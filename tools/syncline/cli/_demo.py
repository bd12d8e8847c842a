"""``syncline demo``: two devices write offline, collide, come back, and agree.

Everything is real: a server process, two replica files, connections. Only the times of the offline
writes are given, a minute apart, so that the same side wins in every run. The story is played
first and kept as plain data; ``--json`` prints that, people get it told.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from syncline.sync import (
    LIFE,
    AcceptedChange,
    Conflict,
    Delete,
    Entry,
    LocalError,
    Patch,
    Put,
    RecordChange,
    Stamp,
)

from ._demo_text import tell
from ._output import Output, json_option, when
from ._reading import open_data
from ._replay import kept_folder

if TYPE_CHECKING:
    from syncline.client import Replica, Session

MINUTE_US = 60_000_000
COLLECTION = "todo"
START: Mapping[str, dict[str, Any]] = {
    "bread": {"title": "Bread", "amount": 1},
    "milk": {"title": "Milk", "amount": 1},
    "tea": {"title": "Tea", "amount": 1},
}
OFFLINE: tuple[tuple[str, str, dict[str, Any] | None], ...] = (
    ("laptop", "milk", {"amount": 2}),
    ("phone", "milk", {"shop": "Corner shop"}),
    ("laptop", "bread", {"title": "Rye bread"}),
    ("phone", "bread", {"title": "Sourdough"}),
    ("phone", "tea", {"title": "Green tea"}),
    ("laptop", "tea", None),
)
"""Who writes what, a minute apart; None deletes."""


@click.command()
@click.option("--keep", metavar="DIR", help="Leave the files in this new or empty folder.")
@json_option
def demo(keep: str | None, as_json: bool) -> None:
    """Show it all in a few seconds: a server, two devices, offline edits that collide.

    The devices come back, and it says who wrote what, what the log has, who won and why, what lost
    and how to put it back. It puts one value back, and proves that all files agree and hold.

    \b
    Examples:
      syncline demo
      syncline demo --keep shopping
    """
    began = time.monotonic()
    with kept_folder(keep) as folder:
        shown = "" if keep is None else f"{keep.rstrip('/')}/"
        with Output(as_json).busy("Two devices write offline and come back"):
            story = _play(folder, shown)
    story["seconds"] = round(time.monotonic() - began, 3)
    if as_json:
        Output(as_json).document(story)
    else:
        tell(story, shown)
    if not (story["converged"] and story["verified"]):
        raise LocalError("the demo did not hold: " + "; ".join(story["problems"]))


def _play(folder: Path, shown: str) -> dict[str, Any]:
    from syncline.client import Replica

    from .replay import ServerProcess
    from .verify import compare_files, verify_file

    paths = {name: folder / f"{name}.db" for name in ("laptop", "phone")}
    server = folder / "server.db"
    start = time.time_ns() // 1000 // MINUTE_US * MINUTE_US - (len(OFFLINE) + 1) * MINUTE_US
    with ExitStack() as stack:
        url = stack.enter_context(ServerProcess(server, folder / "server.log")).url
        replicas = {
            name: stack.enter_context(Replica(path, client_id=name)) for name, path in paths.items()
        }
        laptop, phone = replicas.values()
        ours = laptop.create_session("Shopping")
        with ours.transaction():
            for id_, fields in START.items():
                ours.put(COLLECTION, id_, fields, updated_at=start)
        _sync(url, laptop, phone)
        sessions = {"laptop": ours, "phone": phone.session(ours.id)}
        offline = [
            _write(sessions[name], name, id_, fields, start + place * MINUTE_US)
            for place, (name, id_, fields) in enumerate(OFFLINE, 1)
        ]
        syncs = _sync(url, laptop, phone, laptop)
        entries = _log(server)
        conflicts = [_conflict(entries, one, shown) for one in ours.conflicts()]
        settled = dict(ours.records(COLLECTION))

        back = next(one for one in conflicts if one["lost"]["client"] == "laptop")
        open_before = _open_conflicts(sessions)
        ours.resolve_conflict(back["conflict"], "local")
        _sync(url, laptop, phone)
        resolved = {
            "conflict": back["conflict"],
            "command": back["put_back"],
            "open_before": open_before,
            "open_after": _open_conflicts(sessions),
            "record": {
                name: session.get(COLLECTION, back["record"].partition("/")[2])
                for name, session in sessions.items()
            },
        }
        log = [row for entry in _log(server) for row in _log_rows(entry)]

    files = [server, *paths.values()]
    reports = [verify_file(path) for path in files]
    damage = [f"{report.path}: {one}" for report in reports for one in report.all_problems()]
    apart = compare_files(server, paths.values())
    return {
        "session": ours.id,
        "files": [f"{shown}{path.name}" for path in files],
        "start": START,
        "offline": offline,
        "syncs": syncs,
        "log": log,
        "settled": settled,
        "conflicts": conflicts,
        "resolved": resolved,
        "converged": not apart,
        "verified": not damage and all(report.ok for report in reports),
        "sha256": reports[0].sessions[0].sha256,
        "head": (reports[0].sessions[0].head or b"").hex(),
        "problems": [*damage, *apart],
    }


def _write(
    session: Session, name: str, id_: str, fields: dict[str, Any] | None, at: int
) -> dict[str, Any]:
    if fields is None:
        session.delete(COLLECTION, id_, updated_at=at)
    else:
        session.patch(COLLECTION, id_, fields, updated_at=at)
    return {
        "device": name,
        "updated_at": when(at),
        "record": f"{COLLECTION}/{id_}",
        "fields": fields,
    }


def _sync(url: str, *replicas: Replica) -> list[dict[str, Any]]:
    reports = [replica.sync_once(url) for replica in replicas]
    return [
        {"device": report.client_id, "sent": report.sent, "received": report.received}
        for report in reports
    ]


def _open_conflicts(sessions: Mapping[str, Session]) -> dict[str, int]:
    return {name: len(session.conflicts()) for name, session in sessions.items()}


def _log(server: Path) -> list[Entry]:
    with open_data(str(server)) as data:
        (session,) = data.sessions()
        return list(data.log(session, 0, session.seq))


def _log_rows(entry: Entry) -> Iterator[dict[str, Any]]:
    for accepted in entry.read():
        change = accepted.change
        row: dict[str, Any] = {"seq": entry.seq, "client": entry.client, "n": entry.n}
        row |= {
            "updated_at": when(accepted.stamp.updated_at),
            "outcome": entry.outcome.name.lower(),
        }
        if isinstance(change, RecordChange):
            row |= {
                "what": f"{type(change).__name__.lower()} {change.collection}/{change.id}",
                "fields": None if isinstance(change, Delete) else change.fields,
                "had_seen": dict(change.context),
            }
            if accepted.effect is not None:
                row["outcome"] = accepted.effect.outcome.name.lower()
        else:
            row["fields"] = None
            row |= {"what": f"closes conflict {getattr(change, 'conflict_id', '')}", "had_seen": {}}
        yield row


def _conflict(entries: list[Entry], conflict: Conflict, shown: str) -> dict[str, Any]:
    loser = conflict.loser.client
    return {
        "conflict": conflict.id,
        "record": f"{conflict.collection}/{conflict.record_id}",
        "field": None if conflict.field == LIFE else conflict.field,
        "won": _side(entries, conflict, conflict.winner),
        "lost": _side(entries, conflict, conflict.loser),
        "put_back": f"syncline resolve {shown}{loser}.db {conflict.id} local",
        "keep": f"syncline resolve {shown}{loser}.db {conflict.id} remote",
    }


def _side(entries: list[Entry], conflict: Conflict, stamp: Stamp) -> dict[str, Any]:
    """What the log says of one of the two writes."""
    change = _find(entries, conflict, stamp).change
    assert isinstance(change, RecordChange)
    if isinstance(change, Delete):
        what: Any = None
    else:
        what = change.fields if conflict.field == LIFE else change.fields[conflict.field]
    return {
        "value": what,
        "client": stamp.client,
        "n": stamp.n,
        "updated_at": when(stamp.updated_at),
        "had_seen": dict(change.context),
    }


def _find(entries: list[Entry], conflict: Conflict, stamp: Stamp) -> AcceptedChange:
    return next(
        accepted
        for entry in entries
        if entry.dot == (stamp.client, stamp.n)
        for accepted in entry.read()
        if isinstance(accepted.change, Put | Patch | Delete)
        and (accepted.change.collection, accepted.change.id)
        == (conflict.collection, conflict.record_id)
    )
