"""``syncline verify``: recompute a file and say whether it holds."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from syncline.sync import BadHistory, Damaged, NotAReplica, NotFound

from ._output import Output, json_option
from .verify import Anchor, check_anchors, read_anchors, verify_file


@click.command()
@click.argument("file")
@click.option(
    "--anchor", "anchors", metavar="ANCHORS", help="Lines of 'syncline anchor' to hold it against."
)
@json_option
def verify(file: str, anchors: str | None, as_json: bool) -> None:
    """Recompute the chain, the state and the ledger in FILE, and name what does not fit.

    FILE is a replica or a server's data file; it may be in use. The code that checks shares nothing
    with the code that writes.

    \b
    Examples:
      syncline verify server.db
      syncline verify notes.db --json
      syncline verify server.db --anchor anchors.jsonl
    """
    if not Path(file).is_file():
        raise NotFound(f"there is no file {file}", path=file)
    out = Output(as_json)
    kept = [] if anchors is None else _anchors(anchors)
    with out.busy(f"Verifying {file}"):
        report = verify_file(file)
        if kept and report.kind != "unknown":
            for problem in check_anchors(file, kept):
                report.problems.add(problem)
    if report.kind == "unknown" and not as_json:
        raise NotAReplica(f"{file}: {report.problems[0]}", path=file)
    rows = [
        {
            **asdict(session),
            "head": None if session.head is None else session.head.hex(),
            "problems": list(session.problems),
        }
        for session in report.sessions
    ]
    problems = report.all_problems()
    if as_json:
        whole = {"file": file, "kind": report.kind, "ok": report.ok, "problems": problems}
        out.document({**whole, "sessions": rows})
    else:
        columns = ("id", "seq", "entries", "alive", "concurrent", "lost", "pending", "sha256")
        out.many(columns, rows)
        for problem in problems:
            click.echo(f"problem: {problem}")
    if not report.ok:
        raise Damaged(f"{file} does not hold: {len(problems)} problems", problems=len(problems))
    if any(session.concurrent is None for session in report.sessions):
        out.say(
            f"{file} holds as far as it can be recomputed: some session came as a snapshot, whose"
            " state is checked for its form only. Compare it with its server's file."
        )
    else:
        out.say(f"{file} holds: every hash, number, record and row was recomputed.")


def _anchors(path: str) -> list[Anchor]:
    try:
        found = read_anchors(path)
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}", path=path) from error
    except ValueError as error:
        raise BadHistory(str(error), path=path) from error
    if not found:
        raise NotFound(f"there is no anchor in {path}", path=path)
    return found
