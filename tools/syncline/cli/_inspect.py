"""Commands that look at a replica or a server's data file: status, records, log,
conflicts. They only read, and work while an app or a server has the file open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import click

from syncline.sync import (
    AcceptedChange,
    Conflict,
    Delete,
    Entry,
    Erase,
    Event,
    Patch,
    Put,
    Resolve,
    Stamp,
)

from ._output import Output, json_option, when
from ._reading import DataReader, SessionInfo, open_data

LOG_LIMIT = 100

_F = TypeVar("_F", bound=Callable[..., Any])


def _session_option(command: _F) -> _F:
    return click.option(
        "--session", "session_id", metavar="ID", help="Only this session; else all of them."
    )(command)


@click.command()
@click.argument("file")
@json_option
def status(file: str, as_json: bool) -> None:
    """Say what FILE is, what waits in it, and why.

    \b
    Examples:
      syncline status notes.db
      syncline status server.db --json
    """
    out = Output(as_json)
    with open_data(file) as data:
        whole = {"file": file, "kind": data.kind, **data.identity(), **data.library()}
        whole |= {key: when(whole[key]) for key in ("since", "synced_at") if key in whole}
        rows = [_status_row(data, session) for session in data.sessions()]
    if as_json:
        out.document({**whole, "sessions": rows})
        return
    out.one({**whole, "sessions": len(rows)})
    columns = ["session", "seq", "conflicts", "refused"]
    columns += ["clients"] if whole["kind"] == "server" else ["pending", "pending_since", "paused"]
    out.many(columns, rows)


def _status_row(data: DataReader, session: SessionInfo) -> dict[str, Any]:
    counts = data.counts(session)
    if "pending_since" in counts:
        counts |= {"pending_since": when(counts["pending_since"]), "paused": session.paused}
    return {**session_row(session), **counts}


def session_row(session: SessionInfo) -> dict[str, Any]:
    """What a list of sessions says of one."""
    return {
        "session": session.id,
        "label": session.label,
        "epoch": session.epoch,
        "seq": session.seq,
        "hash": None if session.hash is None else session.hash.hex(),
    }


@click.command()
@click.argument("file")
@click.argument("collection", required=False)
@_session_option
@json_option
def records(file: str, collection: str | None, session_id: str | None, as_json: bool) -> None:
    """List the records in FILE that are alive, of one COLLECTION or of all.

    \b
    Examples:
      syncline records notes.db
      syncline records server.db todo --json
    """

    def rows(data: DataReader) -> Iterator[Mapping[str, Any]]:
        for session in data.sessions(session_id):
            for (its_collection, id_), fields in data.records(session, collection):
                yield {
                    "session": session.id,
                    "collection": its_collection,
                    "id": id_,
                    "fields": fields,
                }

    with open_data(file) as data:
        Output(as_json).many(("session", "collection", "id", "fields"), rows(data))


@click.command()
@click.argument("file")
@click.option("--after", type=click.IntRange(0), default=0, help="Only entries above this seq.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=LOG_LIMIT,
    show_default=True,
    help="At most so many of each session.",
)
@_session_option
@json_option
def log(file: str, after: int, limit: int, session_id: str | None, as_json: bool) -> None:
    """Show the canonical log in FILE: who wrote what, in which order, and what came of it.

    \b
    Examples:
      syncline log server.db --limit 20
      syncline log notes.db --after 1200 --json
    """

    def rows(data: DataReader) -> Iterator[Mapping[str, Any]]:
        for session in data.sessions(session_id):
            for entry in data.log(session, after, limit):
                yield _entry_row(session, entry)

    columns = ("session", "seq", "client", "n", "outcome", "accepted_at", "what")
    with open_data(file) as data:
        Output(as_json).many(columns, rows(data))


def _entry_row(session: SessionInfo, entry: Entry) -> dict[str, Any]:
    changes = [_change_row(accepted) for accepted in entry.read()]
    return {
        "session": session.id,
        "epoch": entry.epoch,
        "seq": entry.seq,
        "client": entry.client,
        "n": entry.n,
        "outcome": entry.outcome.name.lower(),
        "accepted_at": when(entry.accepted_at),
        "receipt": entry.receipt_id,
        "what": ", ".join(change["what"] for change in changes),
        "changes": changes,
    }


def _change_row(accepted: AcceptedChange) -> dict[str, Any]:
    change, effect = accepted.change, accepted.effect
    row: dict[str, Any] = {"updated_at": when(accepted.stamp.updated_at)}
    match change:
        case Put() | Patch():
            kind = type(change).__name__.lower()
            row |= {"what": f"{kind} {change.collection}/{change.id}", "fields": change.fields}
        case Delete():
            row |= {"what": f"delete {change.collection}/{change.id}"}
        case Event():
            row |= {"what": f"event {change.type}", "payload": change.payload}
        case Resolve():
            row |= {"what": f"resolve {change.conflict_id}"}
        case Erase():
            row |= {"what": f"erase {', '.join(change.clients)}", "entries": len(change.rewritten)}
    if effect is not None:
        row["outcome"] = effect.outcome.name.lower()
        row["lost"] = [
            {"field": lost.field, "value": lost.value, "by": lost.loser.client}
            for lost in effect.lost
        ]
    return row


@click.command()
@click.argument("file")
@_session_option
@json_option
def conflicts(file: str, session_id: str | None, as_json: bool) -> None:
    """List the open conflicts in FILE: values that lost, to whom, and under which id.

    Put a value back, or keep what stands, with 'syncline resolve'.

    \b
    Examples:
      syncline conflicts notes.db
      syncline resolve notes.db 5d41402abc4b2a76b971 local
    """
    with open_data(file) as data:
        rows = [
            _conflict_row(session, conflict)
            for session in data.sessions(session_id)
            for conflict in data.conflicts(session)
        ]
    columns = ("conflict", "collection", "id", "field", "value", "lost_by", "won_by")
    Output(as_json).many(columns, rows)


def _conflict_row(session: SessionInfo, conflict: Conflict) -> dict[str, Any]:
    return {
        "session": session.id,
        "conflict": conflict.id,
        "collection": conflict.collection,
        "id": conflict.record_id,
        "field": conflict.field,
        "value": conflict.value,
        "lost_by": _stamp(conflict.loser),
        "won_by": _stamp(conflict.winner),
    }


def _stamp(stamp: Stamp) -> str:
    return f"{stamp.client} at {when(stamp.updated_at)}"
