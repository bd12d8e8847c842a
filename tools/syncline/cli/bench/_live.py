"""W3: A writes, B sees it: the delay from the call to what is committed on the other device."""

from __future__ import annotations

import statistics

from ._bench import Bench, add
from ._figures import Result, Spec

PER_SECOND = 50.0
NS_PER_MS = 1e6
SPECS = (
    Spec("live_p50_ms", "ms", "from A's write to B's commit, half of all", ratio_max=1.5),
    Spec("live_p99_ms", "ms", "the same, all but one in a hundred", ratio_max=2.0),
)


def run(bench: Bench, result: Result) -> None:
    writes = bench.scale.live_writes
    for _ in bench.rounds(result):
        for side in bench.sides():
            with bench.stage(side) as stage:
                server = stage.server()
                a, b = stage.clients("a", "b")
                for client in (a, b):
                    client.ask("connect", server.url)
                b.ask("watch")
                began = a.ask("write_paced", 0, writes, PER_SECOND)
                b.ask("await_seen", writes)
                seen = b.ask("seen")
                result.equal(f"{side.name}: records seen live", sorted(seen), sorted(began))
                delays = [(seen[number] - at) / NS_PER_MS for number, at in began.items()]
                add(result, side, "live_p50_ms", percentile(delays, 50))
                add(result, side, "live_p99_ms", percentile(delays, 99))
                same = a.ask("digest") == b.ask("digest")
                result.expect(same, f"{side.name}: A and B differ in the end")


def percentile(values: list[float], percent: int) -> float:
    """The value that so many of a hundred do not exceed."""
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
