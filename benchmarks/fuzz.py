"""Fuzz the decoders and both engines: ``python -m benchmarks.fuzz --frames 1000000 --seed 1``.

Rounds of 200 frames, each from a seed of its own, spread over processes. A finding is printed with
the line that plays it again, and makes the exit code 1. ``--json`` prints one object: frames,
rounds, seconds, frames per second, the growth of memory in MiB between the first tenth and the end
(of the process that grew most), the slowest frame in milliseconds of CPU time by target, and what
was reached.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.fuzzing import ROUND_FRAMES, TARGETS, Finding, Tally, play, schedule


@dataclass(slots=True)
class Report:
    """What the rounds of one process came to."""

    tally: Tally = field(default_factory=Tally)
    findings: list[str] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)


def rss_mib() -> float:
    """The memory of this process that is resident now."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / (1 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_rounds(rounds: list[tuple[str, int, int]]) -> Report:
    """Play these rounds, one after another."""
    report = Report()
    tenth = max(1, len(rounds) // 10)
    for place, (name, seed, frames) in enumerate(rounds, 1):
        try:
            play(name, seed, report.tally, frames)
        except Finding as finding:
            report.findings.append(str(finding))
        if place % tenth == 0:
            report.rss_mib.append(rss_mib())
    return report


def _shares(rounds: list[tuple[str, int, int]], processes: int) -> Iterator[Any]:
    for place in range(processes):
        yield rounds[place::processes]


def summary(reports: list[Report], seconds: float) -> dict[str, Any]:
    frames = sum(report.tally.frames for report in reports)
    slowest: dict[str, float] = {}
    reached: Counter[str] = Counter()
    for report in reports:
        reached.update(report.tally.reached)
        for name, took in report.tally.slowest_us.items():
            slowest[name] = max(slowest.get(name, 0.0), round(took / 1000, 1))
    growth = [r.rss_mib[-1] - r.rss_mib[0] for r in reports if r.rss_mib]
    return {
        "frames": frames,
        "rounds": sum(report.tally.rounds for report in reports),
        "findings": [finding for report in reports for finding in report.findings],
        "seconds": round(seconds, 1),
        "frames_per_second": round(frames / max(seconds, 0.001)),
        "rss_growth_mib": round(max(growth, default=0.0), 1),
        "rss_mib": round(max((r.rss_mib[-1] for r in reports if r.rss_mib), default=0.0), 1),
        "slowest_ms": slowest,
        "reached": dict(sorted(reached.items())),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--target", choices=["decoders", *TARGETS], help="this one only")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    rounds = list(schedule(options.seed, options.frames))
    if options.target:
        rounds = [(options.target, seed, frames) for _, seed, frames in rounds]

    # Each process gets its rounds in a few parts, so that there is progress to see.
    began = time.monotonic()
    parts = list(_shares(rounds, options.processes))
    reports: list[Report] = []
    if options.processes == 1 or len(rounds) == 1:
        reports.append(run_rounds(rounds))
    else:
        with ProcessPoolExecutor(options.processes) as pool:
            waiting = [pool.submit(run_rounds, part) for part in parts if part]
            for done in as_completed(waiting):
                reports.append(done.result())
    result = summary(reports, time.monotonic() - began)
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        print(
            f"{result['frames']} frames in {result['seconds']} s"
            f" ({result['frames_per_second']} a second), memory grew by"
            f" {result['rss_growth_mib']} MiB, {len(result['findings'])} findings"
        )
    for finding in result["findings"]:
        print(finding, file=sys.stderr)
    return 1 if result["findings"] else 0


if __name__ == "__main__":
    warnings.simplefilter("error")
    assert ROUND_FRAMES > 0
    sys.exit(main())
