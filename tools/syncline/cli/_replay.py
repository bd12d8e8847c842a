"""``syncline replay``: play a device history through a real server, and prove that all agree."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from syncline.sync import LocalError

from ._output import Output, cell, json_option

if TYPE_CHECKING:
    from .replay import Durability, History, Result

ONLINE_MAX = 64


@click.command()
@click.argument("history", type=click.Path(), metavar="HISTORY")
@click.option(
    "--online",
    type=click.IntRange(1, ONLINE_MAX),
    default=1,
    show_default=True,
    help="How many devices may be online at once.",
)
@click.option(
    "--cut",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    show_default=True,
    help="How likely each connection is cut, after a random number of bytes.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the cuts.")
@click.option(
    "--durability",
    type=click.Choice(["full", "normal"]),
    default="full",
    show_default=True,
    help="Of the replicas: 'normal' waits less for the disk.",
)
@click.option("--keep", metavar="DIR", help="Leave the files in this new or empty folder.")
@json_option
def replay(
    history: str,
    online: int,
    cut: float,
    seed: int,
    durability: Durability,
    keep: str | None,
    as_json: bool,
) -> None:
    """Play HISTORY through a real server: a replica file per device, a connection per sync.

    At the end all files are closed, recomputed by code that shares nothing with what wrote them,
    and compared. The exit code is 0 only when all agree (converged) and hold (verified). HISTORY is
    JSON lines, gzipped or not; it is checked as a whole before anything is played.

    With more than one device online at once the order of syncs, and so the outcome, may differ from
    run to run; that all agree may not.

    \b
    Examples:
      syncline replay history.jsonl.gz
      syncline replay history.jsonl.gz --json
      syncline replay history.jsonl.gz --online 8 --cut 0.2 --seed 7 --keep played
    """
    from .replay import check, play, read_history

    began = time.monotonic()
    out = Output(as_json)
    read = read_history(history)
    with kept_folder(keep) as folder:
        with _progress(out, len(read.steps) + len(read.devices)) as step:
            played = play(
                read,
                folder,
                online=online,
                cut=cut,
                seed=seed,
                durability=durability,
                progress=step,
            )
        with out.busy(f"Verifying {1 + len(played.replicas)} files"):
            result = check(read, played)
    out.one(_figures(read, result, time.monotonic() - began))
    for problem in result.problems:
        click.echo(f"problem: {cell(problem)}", err=True)
    if cut:
        out.say(f"The network was cut {played.cuts} times.")
    if keep:
        out.say(f"The files are in {keep}: try 'syncline log {keep}/server.db'.")
    if not (result.converged and result.verified):
        raise LocalError(f"the play did not hold: {len(result.problems)} problems")


def _figures(history: History, result: Result, seconds: float) -> dict[str, Any]:
    return {
        "devices": len(history.devices),
        "writes": history.writes,
        "changes": history.changes,
        "syncs": history.syncs,
        "entries": result.entries,
        "alive": result.alive,
        "concurrent": result.concurrent,
        "lost": result.lost,
        "converged": result.converged,
        "verified": result.verified,
        "sha256": result.sha256,
        "seconds": round(seconds, 3),
    }


@contextmanager
def _progress(out: Output, steps: int) -> Iterator[Callable[[], None]]:
    """A bar for people, on stderr; the caller calls once for each step."""
    if out.as_json or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("Playing", total=steps)
        yield lambda: bar.advance(task)


@contextmanager
def kept_folder(keep: str | None) -> Iterator[Path]:
    """The folder asked for, which must be new or empty; or a temporary one that goes at the end."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="syncline-") as name:
            yield Path(name)
        return
    folder = Path(keep)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise LocalError(f"the folder {keep} is not empty; it was left as it is", path=keep)
    yield folder
