"""W4: one writes, many see it: a burst in one batch, and the same number of single writes."""

from __future__ import annotations

from ._actor import Actor, together
from ._bench import Bench, add
from ._figures import Result, Spec
from ._stage import Side, Stage

NS_PER_S = 1e9
SPECS = (
    Spec(
        "burst_deliveries_s",
        "ops/s",
        "ops of one batch, times clients, from its start until all have all",
        more_is_better=True,
        least=50_000,
    ),
    Spec("burst_s", "s", "how long that took"),
    Spec(
        "single_deliveries_s",
        "ops/s",
        "the same number of writes with a commit each",
        more_is_better=True,
        ratio_max=1.2,
    ),
    Spec("single_s", "s", "how long that took"),
)


def run(bench: Bench, result: Result) -> None:
    for _ in bench.rounds(result):
        for side in bench.sides():
            with bench.stage(side) as stage:
                server = stage.server()
                writer = stage.client("writer")
                writer.ask("connect", server.url)
                numbers = range(1, bench.scale.subscribers + 1)
                crowd = stage.clients(*(f"client-{number}" for number in numbers))
                together(crowd, "connect", server.url)
                for name, batch in (("burst", True), ("single", False)):
                    _spread(result, stage, writer, crowd, name, bench.scale.burst, batch)
                stage.end(writer, *crowd)


def _spread(
    result: Result,
    stage: Stage,
    writer: Actor,
    crowd: list[Actor],
    name: str,
    count: int,
    batch: bool,
) -> None:
    side: Side = stage.side
    together(crowd, "watch")
    for client in crowd:
        client.tell("await_seen", count)
    began = writer.ask("write_burst", 0 if batch else count, count, batch)
    took = (max(client.answer() for client in crowd) - began) / NS_PER_S
    add(result, side, f"{name}_deliveries_s", count * len(crowd) / took)
    add(result, side, f"{name}_s", took)
    wanted = writer.ask("digest")
    differ = sum(digest != wanted for digest in together(crowd, "digest"))
    result.equal(f"{side.name}: clients that differ after the {name}", differ, 0)
    result.equal(f"{side.name}: records after it", writer.ask("count"), count * (1 if batch else 2))
