"""``syncline teeth``: faults planted on purpose, and who notices them."""

from __future__ import annotations

import sys

import click

from syncline.sync import NotFound
from syncline.testing import Bite, bite, planted_faults

from ._output import Output, json_option


@click.command()
@click.option("--only", multiple=True, metavar="NAME", help="Only these faults; may be repeated.")
@click.option("--seeds", default=500, show_default=True, help="How many worlds to play for each.")
@click.option("--processes", type=click.IntRange(1), help="Faults hunted at once [all cores].")
@click.option("--table", is_flag=True, help="Print the rows of the table in docs/teeth.md.")
@json_option
def teeth(
    only: tuple[str, ...], seeds: int, processes: int | None, table: bool, as_json: bool
) -> int:
    """Plant faults in copies of the source tree, and show that each of them is noticed.

    Each fault is one line of the product. It is hunted with worlds of the simulator, up to the
    first that breaks a promise; what survives them all, with the tests beside the changed code.
    Works from a checkout. Exit code 1 when a fault survives that is not known to.

    \b
    Examples:
      syncline teeth
      syncline teeth --only join-forgotten --only salt-not-looked-up
      syncline teeth --seeds 50 --json
    """
    faults = planted_faults()
    unknown = set(only) - {fault.name for fault in faults}
    if unknown:
        names = ", ".join(fault.name for fault in faults)
        raise NotFound(f"there is no planted fault {', '.join(sorted(unknown))}; known: {names}")
    faults = tuple(fault for fault in faults if not only or fault.name in only)

    def progress(found: Bite) -> None:
        if sys.stderr.isatty():
            click.echo(f"{found.fault.name}: {_caught(found)}", err=True)

    bites = bite(faults, seeds, processes=processes, progress=progress)
    missed = [found for found in bites if found.layer is None]
    code = 1 if any(found.unasked or not found.fault.survives for found in missed) else 0
    if table:
        for found in bites:
            click.echo(_row(found))
        return code
    output = Output(as_json)
    caught = sum(found.layer is not None for found in bites)
    if as_json:
        document = {"planted": len(bites), "caught": caught, "faults": [b.as_json() for b in bites]}
        output.document(document)
    else:
        for found in bites:
            click.echo(f"{found.fault.name:36} {found.fault.file:44} {_caught(found)}")
        click.echo(f"{caught} of {len(bites)} planted faults were noticed")
    return code


def _row(found: Bite) -> str:
    by = {"simulator": f"world {found.seeds}", "suite": "suite", None: "nobody"}[found.layer]
    where = found.fault.file.replace("/syncline/", "/").split("/", 1)[1]
    return f"| `{found.fault.name}` | `{where}` | {found.fault.breaks} | {by} |"


def _caught(found: Bite) -> str:
    if found.layer is None and found.unasked:
        return f"nobody knows: {found.unasked}; again, with fewer --processes where memory is short"
    if found.layer is None:
        return f"survives: {found.fault.survives or 'a hole'}"
    if found.layer == "simulator":
        return f"simulator, {found.seeds} seeds: {found.how[:90]}"
    return f"suite: {found.how[:100]}"
