"""Commands for what the law asks of a server's operator: erase, ledger, anchor."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path

import click

from syncline.sync import NotAReplica, NotFound, ReadOnly

from ._output import Output, json_option, when
from .verify import take_anchor


@click.command()
@click.option("--data", metavar="FILE", required=True, help="The server's data file.")
@click.option(
    "--subject", metavar="NAME", required=True, help="A principal's name, or one client id."
)
@click.option(
    "--client", "clients", multiple=True, metavar="ID", help="One more client id of theirs."
)
@click.option(
    "--hold", "held", multiple=True, metavar="SESSION", help="Refuse when this session is touched."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def erase(
    data: str,
    subject: str,
    clients: tuple[str, ...],
    held: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Erase what a person wrote, here and on every replica that syncs after this.

    The server must not run meanwhile. Values become empty and stay so; the log's places, hashes and
    the ledger's rows stand, so that 'verify' still holds. It cannot be undone. Older backups still
    hold everything: after restoring one, erase again.

    \b
    Examples:
      syncline erase --data server.db --subject ann
      syncline erase --data server.db --subject ann --client anns-old-phone --yes
    """
    from syncline.server import Compliance
    from syncline.server import erase as erase_subject

    class Given(Compliance):
        def clients_of(self, subject: str) -> Collection[str]:
            return clients

        def hold(self, session: str, clients: Collection[str]) -> str | None:
            return "it was named with --hold" if session in held else None

    out = Output(as_json)
    if not yes:
        click.confirm(f"Erase for good what {subject} wrote in {data}?", abort=True, err=True)
    with out.busy(f"Erasing in {data}"):
        erased = erase_subject(data, subject, now=time.time_ns() // 1000, compliance=Given())
    out.one(
        {
            "data": data,
            "clients": list(erased.clients),
            "sessions": len(erased.sessions),
            "entries": erased.entries,
            "records": erased.records,
            "conflicts": erased.conflicts,
            "identities": erased.identities,
        }
    )


@click.command()
@click.argument("file")
@click.option(
    "--after", metavar="N", type=click.IntRange(0), default=0, help="Rows above this one."
)
@click.option("--without-identities", is_flag=True, help="Leave out who it was.")
@json_option
def ledger(file: str, after: int, without_identities: bool, as_json: bool) -> None:
    """Print the audit ledger of a server's FILE: what was lost, refused, erased, and who signed in.

    \b
    Examples:
      syncline ledger server.db
      syncline ledger server.db --after 1000 --json
    """
    from syncline.server import export_ledger

    rows = [
        {
            "n": line.n,
            "at": when(line.at),
            "kind": line.kind,
            "session": line.session,
            "facts": dict(line.facts),
            "identity": None
            if without_identities or line.identity is None
            else dict(line.identity),
            "hash": line.hash.hex(),
        }
        for line in export_ledger(file, after=after)
    ]
    out = Output(as_json)
    if as_json:
        out.document(rows)
    else:
        out.many(("n", "at", "kind", "session", "facts", "identity"), rows)


@click.command()
@click.argument("file")
@click.option("--to", "target", metavar="ANCHORS", help="Add the line to this file; else print it.")
def anchor(file: str, target: str | None) -> None:
    """Note the heads of a server's FILE, to be kept in another place.

    'syncline verify FILE --anchor ANCHORS' then finds also what a chain alone cannot show: a tail
    that was cut off, or a file that was written anew.

    \b
    Examples:
      syncline anchor server.db --to /media/usb/anchors.jsonl
      syncline verify server.db --anchor /media/usb/anchors.jsonl
    """
    if not Path(file).is_file():
        raise NotFound(f"there is no file {file}", path=file)
    try:
        line = take_anchor(file, time.time_ns() // 1000).line()
    except ValueError as error:
        raise NotAReplica(str(error), path=file) from error
    if target is None:
        click.echo(line)
        return
    try:
        with open(target, "a", encoding="utf-8") as anchors:
            anchors.write(line + "\n")
            anchors.flush()
            os.fsync(anchors.fileno())
    except OSError as error:
        raise ReadOnly(f"{target} cannot be written: {error.strerror}", path=target) from error
    Output().say(f"{target} has the heads of {file} as they are now.")
