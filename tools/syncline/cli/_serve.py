"""Commands of a server: serve, backup, restore."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import click

from ._output import Output, json_option

if TYPE_CHECKING:
    from syncline.server import Store, SyncServer, Tokens

TOKEN_VARIABLE = "SYNCLINE_TOKEN"


@click.command()
@click.option("--data", metavar="FILE", help="The server's data file; made if it is not there.")
@click.option("--memory", is_flag=True, help="Keep everything in memory: nothing lasts.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8787, show_default=True)
@click.option("--token-file", metavar="FILE", help="Tokens and what each opens, as JSON.")
def serve(data: str | None, memory: bool, host: str, port: int, token_file: str | None) -> None:
    """Run a sync server until Ctrl-C or SIGTERM.

    Give a token in SYNCLINE_TOKEN, which opens every session, or tokens in a file:
    {"<token>": {"name": "alice", "sessions": ["*"]}}. Without either, everybody may open every
    session, and the server listens on this machine only.

    \b
    Examples:
      syncline serve --data server.db
      SYNCLINE_TOKEN=secret syncline serve --data server.db --host 0.0.0.0
      syncline serve --data server.db --token-file tokens.json --port 9000
    """
    if (data is None) == (not memory):
        raise click.UsageError("Give --data FILE or --memory.")
    from syncline.server import MemoryStore, SqliteStore, SyncServer

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    tokens = _tokens(token_file)
    store: Store = MemoryStore() if data is None else SqliteStore(data)
    try:
        server = SyncServer(store, host=host, port=port, tokens=tokens)
        server.serve_forever(listening=lambda it: _say_listening(it, open_to_all=tokens is None))
    finally:
        store.close()


def _tokens(token_file: str | None) -> Tokens | None:
    from syncline.server import Tokens

    if token_file is not None:
        return Tokens.load(token_file)
    token = os.environ.get(TOKEN_VARIABLE)
    return Tokens.single(token) if token else None


def _say_listening(server: SyncServer, *, open_to_all: bool) -> None:
    line = f"listening on {server.url}"
    if open_to_all:
        line += " (loopback only: there is no token)"
    click.echo(line)


@click.command()
@click.option("--data", metavar="FILE", required=True, help="The server's data file.")
@click.argument("target")
def backup(data: str, target: str) -> None:
    """Copy a server's data file to TARGET, also while the server runs.

    \b
    Example:
      syncline backup --data server.db server-monday.db
    """
    from syncline.server import backup as back_up

    with Output().busy(f"Copying {data}"):
        back_up(data, target)
    Output().say(f"{target} holds {data} as it is now.")


@click.command()
@click.option("--data", metavar="FILE", required=True, help="The server's data file.")
@click.option("--from", "source", metavar="BACKUP", help="The backup to take; else FILE itself.")
@json_option
def restore(data: str, source: str | None, as_json: bool) -> None:
    """Take a backup into service, in a new epoch, so that clients give back what it lacks.

    A file that was put into place by other means needs this too, without --from. The server must
    not run meanwhile.

    \b
    Examples:
      syncline restore --data server.db --from server-monday.db
      syncline restore --data server.db
    """
    from syncline.server import restore as take_back

    out = Output(as_json)
    with out.busy(f"Restoring {data}"):
        restored = take_back(data, source)
    out.one(
        {
            "data": data,
            "store_id": restored.store_id,
            "epoch_before": restored.epoch_before,
            "epoch": restored.epoch,
        }
    )
