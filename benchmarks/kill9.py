"""kill -9 under load: ``python -m benchmarks.kill9 --rounds 2000``.

Each round kills a writing client, two of them, the server, or all three, at a random moment, and
looks at the files; every hundred rounds all come to rest, are compared with the diaries that the
writers kept, and verified. Exit code 1 when anything was lost, doubled, missing or wrong.
``--json`` prints one object at the end; progress goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.faults.killing import LIFE_ROUNDS, Life, Tally
from tests.faults.nursery import Nursery

PROGRESS_S = 5.0


def summary(tally: Tally, seconds: float) -> dict[str, Any]:
    return {
        "rounds": tally.rounds,
        "kills": dict(sorted(tally.kills.items())),
        "writes_returned": tally.returned,
        "seen_settled": tally.settled,
        "log_entries": tally.entries,
        "in_the_log_but_untold": tally.untold,
        "lost": tally.lost,
        "doubled": tally.doubled,
        "holes": tally.holes,
        "problems": tally.problems,
        "seconds": round(seconds, 1),
    }


def run(rounds: int, seed: int, folder: Path | None, *, progress: bool) -> dict[str, Any]:
    """Lives of a hundred rounds each, until there were so many. Stops at the first finding."""
    tally = Tally()
    began = told_at = time.monotonic()

    def after_round() -> None:
        nonlocal told_at
        now = time.monotonic()
        if progress and now - told_at >= PROGRESS_S:
            told_at = now
            print(
                f"{tally.rounds}/{rounds} rounds, {tally.returned} writes returned,"
                f" {len(tally.findings)} findings, {now - began:.0f} s",
                file=sys.stderr,
                flush=True,
            )

    with Nursery() as nursery:
        while tally.rounds < rounds and not tally.findings:
            place = Path(tempfile.mkdtemp(prefix="syncline-kill9-", dir=folder))
            life = Life(place, seed + tally.rounds, nursery, tally)
            life.play(min(LIFE_ROUNDS, rounds - tally.rounds), after_round)
            if tally.findings:
                print(f"the files are kept in {place}", file=sys.stderr)
            else:
                shutil.rmtree(place)
    return summary(tally, time.monotonic() - began)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kill9", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the files are made (default: temporary)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    result = run(options.rounds, options.seed, options.folder, progress=True)
    findings = [f for kind in ("lost", "doubled", "holes", "problems") for f in result[kind]]
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        print(
            f"{result['rounds']} kills in {result['seconds']} s, {result['writes_returned']} writes"
            f" returned, {result['log_entries']} are in the log: {len(findings)} findings"
        )
        for finding in findings:
            print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
