"""Commands that write to a replica: init, put, patch, delete, resolve; and get, which reads it.

A write is durable in the replica when the command returns, and waits there for the next sync.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from syncline.sync import LocalError, NotFound

from ._output import Output, json_option
from ._replica import choose_session, open_replica, session_option
from ._values import read_fields

if TYPE_CHECKING:
    from syncline.client import Receipt, Replica, Session


@click.command()
@click.argument("replica")
@click.option("--client-id", metavar="ID", help="The device's id; a random one if not given.")
@json_option
def init(replica: str, client_id: str | None, as_json: bool) -> None:
    """Make an empty replica: one SQLite file.

    \b
    Examples:
      syncline init notes.db
      syncline init notes.db --client-id laptop
    """
    from syncline.client import Replica

    if Path(replica).exists():
        raise LocalError(f"there is a file {replica} already; it was left as it is")
    with Replica(replica, client_id=client_id) as made:
        Output(as_json).one({"replica": replica, "client": made.client_id})


@click.command()
@click.argument("replica")
@click.argument("collection")
@click.argument("id")
@click.argument("fields", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option("--json-fields", metavar="JSON", help="All fields as one JSON object.")
@session_option
@json_option
def put(
    replica: str,
    collection: str,
    id: str,
    fields: tuple[str, ...],
    json_fields: str | None,
    session_id: str | None,
    as_json: bool,
) -> None:
    """Write the whole record COLLECTION/ID: fields that are not named are cleared.

    A VALUE that is JSON is taken as such, any other as text. Bytes are {"$bytes": "<hex>"}. The
    session is made if the replica does not have it.

    \b
    Examples:
      syncline put notes.db todo milk title="Buy milk" done=false
      syncline put notes.db todo milk --json-fields '{"title": "Buy milk", "tags": ["shop"]}'
    """
    values = read_fields(fields, json_fields)
    with open_replica(replica) as opened:
        session = choose_session(opened, session_id, create=True)
        _print_receipt(session, session.put(collection, id, values), as_json)


@click.command()
@click.argument("replica")
@click.argument("collection")
@click.argument("id")
@click.argument("fields", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option("--json-fields", metavar="JSON", help="The fields as one JSON object.")
@session_option
@json_option
def patch(
    replica: str,
    collection: str,
    id: str,
    fields: tuple[str, ...],
    json_fields: str | None,
    session_id: str | None,
    as_json: bool,
) -> None:
    """Write some fields of the record COLLECTION/ID: the others stay as they are.

    \b
    Example:
      syncline patch notes.db todo milk done=true
    """
    values = read_fields(fields, json_fields)
    with open_replica(replica) as opened:
        session = choose_session(opened, session_id)
        _print_receipt(session, session.patch(collection, id, values), as_json)


@click.command()
@click.argument("replica")
@click.argument("collection")
@click.argument("id")
@session_option
@json_option
def delete(replica: str, collection: str, id: str, session_id: str | None, as_json: bool) -> None:
    """Delete the record COLLECTION/ID.

    \b
    Example:
      syncline delete notes.db todo milk
    """
    with open_replica(replica) as opened:
        session = choose_session(opened, session_id)
        _print_receipt(session, session.delete(collection, id), as_json)


@click.command()
@click.argument("replica")
@click.argument("collection")
@click.argument("id")
@session_option
@json_option
def get(replica: str, collection: str, id: str, session_id: str | None, as_json: bool) -> None:
    """Show the fields of the record COLLECTION/ID.

    \b
    Examples:
      syncline get notes.db todo milk
      syncline get notes.db todo milk --json
    """
    with open_replica(replica) as opened:
        fields = choose_session(opened, session_id).get(collection, id)
    if fields is None:
        raise NotFound(f"there is no record {collection}/{id}", collection=collection, id=id)
    Output(as_json).one(fields)


@click.command()
@click.argument("replica")
@click.argument("conflict")
@click.argument("choice", nargs=-1, required=True, metavar="local|remote|FIELD=VALUE...")
@session_option
@json_option
def resolve(
    replica: str, conflict: str, choice: tuple[str, ...], session_id: str | None, as_json: bool
) -> None:
    """Close a CONFLICT everywhere: with this device's value, the other one, or new fields.

    This is an ordinary write: it syncs, and can be overwritten later. 'syncline conflicts' lists
    the ids.

    \b
    Examples:
      syncline resolve notes.db 5d41402abc4b2a76b971 local
      syncline resolve notes.db 5d41402abc4b2a76b971 title="Buy oat milk"
    """
    with open_replica(replica) as opened:
        session = _session_of(opened, conflict, session_id)
        if choice in (("local",), ("remote",)):
            receipt = session.resolve_conflict(conflict, choice[0])
        else:
            receipt = session.resolve_conflict(conflict, read_fields(choice))
        _print_receipt(session, receipt, as_json)


def _session_of(replica: Replica, conflict: str, session_id: str | None) -> Session:
    if session_id is not None:
        return choose_session(replica, session_id)
    for session in replica.sessions():
        if any(one.id == conflict for one in session.conflicts()):
            return session
    raise NotFound(f"there is no open conflict {conflict} in this replica", conflict=conflict)


def _print_receipt(session: Session, receipt: Receipt, as_json: bool) -> None:
    Output(as_json).one(
        {"receipt": receipt.id, "state": receipt.state.value, "session": session.id}
    )
