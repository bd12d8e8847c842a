"""``syncline record``: the history that files tell, as lines that ``syncline replay`` plays."""

from __future__ import annotations

from pathlib import Path

import click

from syncline.sync import LocalError
from syncline.testing import record as record_files

from ._output import Output, json_option


@click.command()
@click.argument("files", type=click.Path(), nargs=-1, required=True, metavar="FILE...")
@click.option("--out", type=click.Path(), required=True, help="Where to write; a new file.")
@click.option("--session", metavar="ID", help="Which session, when there are several.")
@click.option(
    "--digests", is_flag=True, help="Replace each value by a digest, to give the history away."
)
@json_option
def record(
    files: tuple[str, ...], out: str, session: str | None, digests: bool, as_json: bool
) -> None:
    """Write the history of a session as JSON lines, from the files of a server and of replicas.

    One FILE with the whole log is enough (a server's, or a replica's that was there from the
    beginning); further replicas add what still waits in their outboxes. The files are only read.
    'inexact' counts writes whose author sees more or less in the recording than it did in life,
    which happens when devices were online at the same moment.

    \b
    Examples:
      syncline record server.db --out history.jsonl
      syncline record server.db ann.db bob.db --digests --out history.jsonl
      syncline replay history.jsonl
    """
    if Path(out).exists():
        raise LocalError(f"{out} is there already; it was left as it is", path=out)
    recording = record_files(*files, session=session, values=not digests)
    history = recording.history
    history.save(out)
    writes = history.writes
    Output(as_json).one(
        {
            "out": out,
            "devices": len(history.devices),
            "writes": len(writes),
            "changes": sum(len(write.changes) for write in writes),
            "syncs": len(history.steps) - len(writes),
            "inexact": recording.inexact,
        }
    )
