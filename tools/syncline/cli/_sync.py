"""``syncline sync``: send all that waits in a replica, take all there is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from syncline.sync import LocalError

from ._output import Output, json_option
from ._replica import open_replica


@click.command()
@click.argument("replica")
@click.argument("url")
@click.option(
    "--token",
    envvar="SYNCLINE_TOKEN",
    metavar="TOKEN",
    help="Signs in; better given in SYNCLINE_TOKEN, which other users of the machine cannot see.",
)
@click.option(
    "--session",
    "session_ids",
    metavar="ID",
    multiple=True,
    help="Only this session; may be repeated. Else all that may be opened.",
)
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=30.0, show_default=True)
@json_option
def sync(
    replica: str,
    url: str,
    token: str | None,
    session_ids: tuple[str, ...],
    timeout: float,
    as_json: bool,
) -> None:
    """Sync REPLICA with the server at URL: send what waits, take what is there.

    \b
    Examples:
      syncline sync notes.db ws://127.0.0.1:8787
      SYNCLINE_TOKEN=secret syncline sync notes.db wss://sync.example.org --timeout 120
    """
    out = Output(as_json)
    with open_replica(replica) as opened, out.busy(f"Syncing with {url}"):
        report = opened.sync_once(
            url, token=token, sessions=list(session_ids) or None, timeout=timeout
        )
    shown: dict[str, Any] = asdict(report)
    out.one(shown)
    if report.paused:
        raise LocalError(f"not all sessions of {replica} were synced: see 'syncline status'")
    if report.refused:
        raise LocalError(f"the server refused ops for good: see 'syncline status {replica}'")
