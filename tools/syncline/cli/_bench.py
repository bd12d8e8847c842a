"""``syncline bench``: what syncing costs on this machine, or against a server that runs already."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from syncline.sync import NotFound

from ._output import Output, on_terminal

if TYPE_CHECKING:
    from .bench._figures import Result

RECORDS = 10_000
RECORDS_MIN, RECORDS_MAX = 100, 400_000
RUNS = 5


@click.command()
@click.argument("workload", nargs=-1)
@click.option(
    "--records",
    type=click.IntRange(RECORDS_MIN, RECORDS_MAX),
    default=RECORDS,
    show_default=True,
    help="How much of everything: W1 writes so many, W2 fetches so many and ten times as many.",
)
@click.option("--runs", type=click.IntRange(1), default=RUNS, show_default=True)
@click.option("--server", "url", metavar="URL", help="Measure against a server that runs already.")
@click.option(
    "--token",
    envvar="SYNCLINE_TOKEN",
    metavar="TOKEN",
    help="Signs in at that server; better given in SYNCLINE_TOKEN.",
)
@click.option("--full", is_flag=True, help="W6 up to 1,000,000 entries; W6 and W7 --runs times.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per workload.")
def bench(
    workload: tuple[str, ...],
    records: int,
    runs: int,
    url: str | None,
    token: str | None,
    full: bool,
    as_json: bool,
) -> int:
    """Measure what syncing costs: WORKLOADs w1 to w8, or all of them.

    \b
    w1  offline writes, then drain       w5  three clients reconcile
    w2  first sync, also through cuts    w6  bytes, memory and start, as the log grows
    w3  live: one writes, one sees       w7  a crowd reconnects after a restart
    w4  fan-out to many                  w8  local reads and writes

    Real server and client processes, real files (every commit forced to disk), loopback. Figures
    are medians with their spread, and times as a multiple of the floor's: the smallest honest
    program for the same job, measured in the same rounds. Files lie in the folder for temporary
    ones (TMPDIR) and are removed. Against --server, sessions of the benchmark stay there. Exit
    code 1 when an end state was wrong or a figure is missing.

    \b
    Examples:
      syncline bench
      syncline bench w1 w2 --records 1000 --runs 3
      syncline bench w3 --server ws://127.0.0.1:8787 --json
    """
    from .bench._runner import WORKLOADS, run_workloads
    from .bench._scale import Scale

    known = [one.name for one in WORKLOADS]
    names = [name.lower() for name in workload] or known
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise NotFound(f"there is no workload {', '.join(unknown)}; known: {', '.join(known)}")
    well = True
    scale = Scale.of(records, full=full)
    with _progress(quiet=as_json) as say:
        for result in run_workloads(
            names, scale, runs, full=full, url=url, token=token if url else None, say=say
        ):
            _show(result, as_json)
            well = well and result.ok
    return 0 if well else 1


def _show(result: Result, as_json: bool) -> None:
    from .bench._report import COLUMNS, notes, rows

    if as_json:
        click.echo(json.dumps(result.as_json(), ensure_ascii=False))
        return
    heading = f"{result.name.upper()}: {result.title} ({result.seconds:.0f} s)"
    click.echo(click.style(heading, bold=True) if on_terminal() else heading)
    Output().many(COLUMNS, rows(result))
    for note in notes(result):
        click.echo(note)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    if quiet or not sys.stderr.isatty():
        yield lambda sentence: None
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield status.update
