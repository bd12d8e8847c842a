"""``syncline simulate``: worlds from seeds, and what they broke."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from syncline.sync import BadHistory
from syncline.testing import FAULTS, Campaign, Failure, Options, play, run

from ._output import Output, json_option

TRACE_LINES = 40


def _kinds(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    kinds = () if text.strip() == "none" else tuple(part.strip() for part in text.split(","))
    for kind in kinds:
        if kind not in FAULTS:
            raise click.BadParameter(
                f"{kind!r} is no kind of fault; there are: {', '.join(FAULTS)}"
            )
    return kinds


@click.command()
@click.option("--seeds", default=200, show_default=True, help="How many worlds to play.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--devices", type=click.IntRange(1, 20), help="Devices in each world [2 to 4].")
@click.option("--writes", default=40, show_default=True, help="Writes in each world.")
@click.option("--faults", help="Only these kinds, with commas between; or 'none' [a mix by seed].")
@click.option("--force", help="These kinds in every world, beside the mix.")
@click.option("--replay", type=int, metavar="SEED", help="Play one world and tell its story.")
@click.option("--processes", type=click.IntRange(1), help="Worlds played at once [all cores].")
@json_option
def simulate(
    seeds: int,
    first: int,
    devices: int | None,
    writes: int,
    faults: str | None,
    force: str | None,
    replay: int | None,
    processes: int | None,
    as_json: bool,
) -> int:
    """Play whole worlds of devices, a server and faults, each from one seed, in virtual time.

    The real client, server and SQL run under one scheduler; checkers apart from them look for
    broken promises. The same seed and options are the same world, on every machine. A world that
    breaks a promise is made as small as it gets, and printed with the line that plays it again.
    Exit code 1 when a promise was broken.

    \b
    Examples:
      syncline simulate --seeds 1000
      syncline simulate --seeds 500 --force restore,clone --json
      syncline simulate --replay 42
    """
    options = Options(devices, _kinds(faults), _kinds(force) or (), writes)
    if replay is not None:
        return _replayed(replay, options, Output(as_json))
    with _progress(seeds, quiet=as_json) as progress:
        campaign = run(range(first, first + seeds), options, processes=processes, progress=progress)
    if as_json:
        Output(True).document(campaign.as_json())
    else:
        _tell(campaign)
    if campaign.ops and not campaign.failures and not campaign.faults and options.faults != ():
        raise BadHistory("no fault changed anything: these worlds prove nothing")
    return 1 if campaign.failures else 0


def _replayed(seed: int, options: Options, output: Output) -> int:
    result = play(seed, options)
    if output.as_json:
        output.document(
            {
                "seed": seed,
                "steps": result.steps,
                "ops": result.ops,
                "entries": result.entries,
                "faults": dict(result.faults),
                "violations": [[v.promise, v.story] for v in result.violations],
                "trace": result.trace,
            }
        )
    else:
        for line in result.trace:
            click.echo(line)
        click.echo(f"{result.ops} writes, {result.entries} entries, {result.steps} steps")
    return 1 if result.violations else 0


def _tell(campaign: Campaign) -> None:
    hours = campaign.virtual_us / 3.6e9
    click.echo(
        f"{campaign.seeds} worlds in {campaign.seconds:.1f} s: {hours:.1f} virtual hours,"
        f" {campaign.ops} writes, {campaign.entries} entries, {campaign.steps} steps"
    )
    struck = ", ".join(f"{kind} {count}" for kind, count in sorted(campaign.faults.items()))
    click.echo(f"faults that struck: {struck or 'none'}")
    for failure in campaign.failures:
        _tell_failure(failure)
    click.echo("no promise was broken" if not campaign.failures else "PROMISES WERE BROKEN")


def _tell_failure(failure: Failure) -> None:
    click.echo(f"\nseed {failure.seed}: {failure.violations[0]}")
    for line in failure.trace[-TRACE_LINES:]:
        click.echo(f"  {line}")
    click.echo(f"again: {failure.replay}")


@contextmanager
def _progress(seeds: int, *, quiet: bool) -> Iterator[Callable[[Campaign], None]]:
    if quiet or not sys.stderr.isatty():
        yield lambda campaign: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("worlds", total=seeds)

        def show(campaign: Campaign) -> None:
            broken = f", {len(campaign.failures)} broken" if campaign.failures else ""
            bar.update(task, completed=campaign.seeds, description=f"worlds{broken}")

        yield show
