"""The sessions of a file, and what can be done with one: all of it offline, on a replica's file.

``syncline sessions FILE`` lists them, as ``syncline sessions list FILE`` does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from syncline.sync import HEADER_COLLECTION, HEADER_ID

from ._inspect import session_row
from ._output import Output, json_option, when
from ._reading import open_data
from ._replica import choose_session, open_replica, session_option

if TYPE_CHECKING:
    from syncline.client.sessions import Checkpoint, Checkpoints, Difference


class _Sessions(click.Group):
    """A group whose first word may be left out: then it is ``list``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = next((word for word in args if not word.startswith("-")), None)
        helps = set(ctx.help_option_names) & set(args)
        if args and named not in self.commands and not helps:
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Sessions, context_settings={"help_option_names": ["-h", "--help"]})
def sessions() -> None:
    """List the sessions in a file, and look back, roll back, fork, export.

    All but 'list' work on a replica, online or not: what they write waits for the next sync. Each
    prints one JSON document with --json.

    \b
    Examples:
      syncline sessions notes.db
      syncline sessions checkpoint notes.db "before the big edit"
      syncline sessions rollback notes.db 01a2300e-80b9-7249-a111-aca093abaf79
      syncline sessions fork notes.db --at 120 --label "another try"
    """


_at_option = click.option(
    "--at",
    metavar="PLACE",
    help="A seq, or the id of a checkpoint or of a rollback; else what shows now.",
)


def read_place(text: str | None) -> Any:
    """A place as it is typed: digits are a seq, all else is an id."""
    return int(text) if text is not None and text.isdecimal() else text


@sessions.command("list")
@click.argument("file")
@click.option("--agent", metavar="NAME", help="Only sessions of this agent.")
@click.option("--status", metavar="STATUS", help="Only active, suspended, completed, ... ones.")
@click.option("--parent", metavar="ID", help="Only forks and subagents of this session.")
@click.option("--metadata", metavar="JSON", help="Only those whose metadata contains this object.")
@click.option("--limit", type=click.IntRange(1, 1000), help="How many on a page: 50.")
@click.option("--cursor", metavar="CURSOR", help="The next page: what the page before ended with.")
@json_option
def list_(file: str, as_json: bool, **query: Any) -> None:
    """List the sessions in FILE with the place that each has reached.

    With any other option, those of a replica that it lets through, newest first, in pages.

    \b
    Examples:
      syncline sessions list notes.db
      syncline sessions server.db --json
      syncline sessions list notes.db --agent helper --metadata '{"team": "blue"}' --limit 20
    """
    given = {name: value for name, value in query.items() if value is not None}
    if given:
        _list_found(file, given, Output(as_json))
        return
    with open_data(file) as data:
        rows = [session_row(session) for session in data.sessions()]
    Output(as_json).many(("session", "label", "epoch", "seq"), rows)


def _list_found(file: str, given: dict[str, Any], out: Output) -> None:
    from syncline.client.sessions import SessionQuery, list_sessions

    if "metadata" in given:
        try:
            given["metadata"] = json.loads(given["metadata"])
        except ValueError as error:
            raise click.BadParameter(f"no JSON: {error}", param_hint="--metadata") from error
        if not isinstance(given["metadata"], dict):
            raise click.BadParameter("give one JSON object", param_hint="--metadata")
    try:
        query = SessionQuery(**given)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--status") from error
    with open_replica(file) as opened:
        page = list_sessions(opened, query)
    rows = [
        {
            "session": one.id,
            "label": one.label,
            "agent": one.agent,
            "status": one.status.value,
            "parent": one.parent_id,
            "created_at": when(one.created_at),
            "metadata": dict(one.metadata),
        }
        for one in page.sessions
    ]
    if out.as_json:
        out.document({"sessions": rows, "cursor": page.cursor})
        return
    out.many(("session", "label", "agent", "status", "parent"), rows)
    if page.cursor is not None:
        click.echo(f"more with --cursor {page.cursor}", err=True)


@sessions.command()
@click.argument("replica")
@session_option
@_at_option
@json_option
def show(replica: str, session_id: str | None, at: str | None, as_json: bool) -> None:
    """Show a session: its header, what it holds, its checkpoints and rollbacks.

    With --at, the header and the records as they were at a place of its log.

    \b
    Examples:
      syncline sessions show notes.db
      syncline sessions show notes.db --at 120 --json
    """
    from syncline.client.sessions import Checkpoints

    with open_replica(replica) as opened:
        session = choose_session(opened, session_id)
        past = Checkpoints(session)
        place = read_place(at)
        state = past.state_at(place)
        row: dict[str, Any] = {
            "session": session.id,
            "deleted": session.deleted,
            "epoch": state.epoch,
            "seq": state.seq,
            "pending": len(session.pending()),
            "header": state.header,
            "records": _counts(state.records),
            "events": len(past.live_events(place)),
        }
        checkpoints = [_checkpoint_row(one) for one in past.list()]
        rollbacks = [
            {"rollback": id_, "at_seq": seq, "to_seq": payload.get("seq")}
            for seq, id_, payload in past.rollbacks()
        ]
        fields = [
            {"collection": collection, "id": id_, "fields": fields}
            for (collection, id_), fields in sorted(state.records.items())
            if not collection.startswith("$")
        ]
    out = Output(as_json)
    if as_json:
        lists = {"checkpoints": checkpoints, "rollbacks": rollbacks}
        out.document({**row, **lists, **({"at": fields} if at is not None else {})})
        return
    out.one(row)
    if at is not None:
        out.many(("collection", "id", "fields"), fields)
    out.many(("checkpoint", "label", "seq", "created_at"), checkpoints)
    out.many(("rollback", "at_seq", "to_seq"), rollbacks)


def _counts(records: Mapping[tuple[str, str], Any]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for collection, _ in records:
        if not collection.startswith("$"):
            counts[collection] = counts.get(collection, 0) + 1
    return counts


def _checkpoint_row(one: Checkpoint) -> dict[str, Any]:
    return {
        "checkpoint": one.id,
        "label": one.label,
        "epoch": one.epoch,
        "seq": one.seq,
        "created_at": when(one.created_at),
        "by": one.by.client,
    }


@sessions.command()
@click.argument("replica")
@click.argument("label", default="")
@json_option
def create(replica: str, label: str, as_json: bool) -> None:
    """Make a session in REPLICA. Other devices learn of it when it is synced.

    \b
    Example:
      syncline sessions create notes.db "my notes"
    """
    with open_replica(replica) as opened:
        session = opened.create_session(label)
        Output(as_json).one({"session": session.id, "label": session.label})


@sessions.command()
@click.argument("replica")
@session_option
@_at_option
@click.option("--label", help="The label of the fork; else that of the original.")
@click.option("--events/--no-events", default=True, help="Whether it gets the conversation.")
@json_option
def fork(
    replica: str,
    session_id: str | None,
    at: str | None,
    label: str | None,
    events: bool,
    as_json: bool,
) -> None:
    """Make a new session that begins with the state of another; that one is not touched.

    Rights are not inherited, and neither are checkpoints.

    \b
    Examples:
      syncline sessions fork notes.db
      syncline sessions fork notes.db --at 120 --label "another try"
    """
    from syncline.client.sessions import Checkpoints

    with open_replica(replica) as opened:
        session = choose_session(opened, session_id)
        made = Checkpoints(session).fork(read_place(at), label=label, events=events)
        header = made.get(HEADER_COLLECTION, HEADER_ID) or {}
        row = {"session": made.id, "label": made.label, "forked_from": header.get("forked_from")}
        Output(as_json).one(row)


@sessions.command()
@click.argument("replica")
@click.argument("place")
@session_option
@click.option(
    "--collection",
    "collections",
    multiple=True,
    metavar="NAME",
    help="Only this collection; may be given several times.",
)
@click.option("--expect-seq", type=click.IntRange(0), help="Fail unless the log is at this seq.")
@click.option("--dry-run", is_flag=True, help="Only say what it would write.")
@json_option
def rollback(
    replica: str,
    place: str,
    session_id: str | None,
    collections: tuple[str, ...],
    expect_seq: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Bring back what a session showed at PLACE: a seq, or the id of a checkpoint or rollback.

    It is one new op: it syncs, settles with what others wrote, and can be undone, by rolling back
    to the id that it prints. The log and its events stay.

    \b
    Examples:
      syncline sessions rollback notes.db 120
      syncline sessions rollback notes.db 120 --dry-run
      syncline sessions rollback notes.db 01a2300e-80b9-7249-a111-aca093abaf79 --collection notes
    """
    from syncline.client.sessions import Checkpoints

    with open_replica(replica) as opened:
        session = choose_session(opened, session_id)
        past: Checkpoints = Checkpoints(session)
        to = read_place(place)
        out = Output(as_json)
        if dry_run:
            _print_difference(out, past.preview(to, collections=collections or None))
            return
        done = past.rollback(to, collections=collections or None, expected_seq=expect_seq)
        row = {
            "rollback": done.id,
            "session": session.id,
            "to_seq": done.seq,
            "receipt": done.receipt.id,
            "state": done.receipt.state.value,
            "added": len(done.wrote.added),
            "changed": len(done.wrote.changed),
            "removed": len(done.wrote.removed),
        }
        out.one(row)


def _print_difference(out: Output, wrote: Difference) -> None:
    rows = [
        {
            "kind": one.kind,
            "collection": one.collection,
            "id": one.id,
            "sets": one.sets,
            "drops": list(one.drops) if one.kind == "changed" else [],
        }
        for one in wrote.records
    ]
    out.many(("kind", "collection", "id", "sets", "drops"), rows)


@sessions.command()
@click.argument("replica")
@click.argument("label", default="")
@session_option
@click.option("--list", "lists", is_flag=True, help="Make none: list those that there are.")
@click.option("--keep", type=click.IntRange(0), help="Make none: drop all but the newest so many.")
@json_option
def checkpoint(
    replica: str,
    label: str,
    session_id: str | None,
    lists: bool,
    keep: int | None,
    as_json: bool,
) -> None:
    """Give what a session shows now a name, to come back to. Checkpoints sync like records.

    \b
    Examples:
      syncline sessions checkpoint notes.db "before the big edit"
      syncline sessions checkpoint notes.db --list
      syncline sessions checkpoint notes.db --keep 10
    """
    from syncline.client.sessions import Checkpoints

    if lists + (keep is not None) + bool(label) > 1:
        raise click.UsageError("Give a LABEL, --list or --keep, and only one of them.")
    with open_replica(replica) as opened:
        past = Checkpoints(choose_session(opened, session_id))
        out = Output(as_json)
        if lists:
            rows = [_checkpoint_row(one) for one in past.list()]
            out.many(("checkpoint", "label", "seq", "created_at", "by"), rows)
        elif keep is not None:
            out.many(("dropped",), [{"dropped": id_} for id_ in past.prune(keep=keep)])
        else:
            out.one(_checkpoint_row(past.create(label)))


@sessions.command("delete")
@click.argument("replica")
@session_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def delete_(replica: str, session_id: str | None, yes: bool, as_json: bool) -> None:
    """Delete a session on every device, for good.

    What is here can still be read and forked; nothing is written to it any more.

    \b
    Example:
      syncline sessions delete notes.db --session 01a2300e-7fc0-746e-92bd-76d0fedca39e --yes
    """
    with open_replica(replica) as opened:
        session = choose_session(opened, session_id)
        if not yes:
            click.confirm(
                f"Delete {session.id} ({session.label}) everywhere?", abort=True, err=True
            )
        receipt = opened.delete_session(session.id)
        Output(as_json).one(
            {"session": session.id, "receipt": receipt.id, "state": receipt.state.value}
        )


@sessions.command()
@click.argument("replica")
@session_option
@_at_option
@click.option(
    "--output",
    "-o",
    type=click.File("w", encoding="utf-8", atomic=True),
    default="-",
    help="The file to write; else the standard output.",
)
def export(replica: str, session_id: str | None, at: str | None, output: Any) -> None:
    """Write a session as lines of JSON: its header, records and conversation, with their times.

    docs/sessions.md says what the lines mean. Rights, checkpoints and the log stay behind.

    \b
    Examples:
      syncline sessions export notes.db -o notes.jsonl
      syncline sessions export notes.db --at 120 > then.jsonl
    """
    from syncline.client.sessions import export_session

    with open_replica(replica) as opened:
        session = choose_session(opened, session_id)
        for line in export_session(session, read_place(at)):
            output.write(line + "\n")


@sessions.command("import")
@click.argument("replica")
@click.argument("lines", type=click.File("r", encoding="utf-8"), metavar="FILE")
@click.option("--label", help="The label of the new session; else that of the exported one.")
@json_option
def import_(replica: str, lines: Any, label: str | None, as_json: bool) -> None:
    """Make a new session of what 'export' wrote: all of it, or nothing.

    It has an id of its own, also when the exported session is in REPLICA. FILE may be '-'.

    \b
    Examples:
      syncline sessions import notes.db notes.jsonl
      syncline sessions export notes.db | syncline sessions import tablet.db -
    """
    from syncline.client.sessions import import_session

    with open_replica(replica) as opened:
        try:
            made = import_session(opened, lines, label=label)
        except UnicodeDecodeError as error:
            raise click.UsageError(f"FILE is not UTF-8: {error.reason}.") from error
        Output(as_json).one(
            {
                "session": made.id,
                "label": made.label,
                "records": sum(made.count(name) for name in made.collections()),
                "events": len(made.events()),
            }
        )
