"""W1: a client writes offline, one commit each and in a batch, then connects and drains."""

from __future__ import annotations

from ._bench import Bench, add
from ._figures import Result, Spec

SPECS = (
    Spec(
        "offline_ops_s",
        "ops/s",
        "writes on one replica, one op and one forced commit each",
        more_is_better=True,
        ratio_max=1.5,
    ),
    Spec(
        "offline_batch_ops_s",
        "ops/s",
        "ops written inside one batch, durable when it ends",
        more_is_better=True,
        least=40_000,
    ),
    Spec(
        "drain_ops_s",
        "ops/s",
        "from connecting until the server holds all ops durably and the client knows it",
        more_is_better=True,
        ratio_max=2.0,
    ),
)


def run(bench: Bench, result: Result) -> None:
    records = bench.scale.records
    for _ in bench.rounds(result):
        for side in bench.sides():
            with bench.stage(side) as stage:
                server = stage.server()
                author = stage.client("author")
                singly = author.ask("write", 0, records)
                batch = author.ask("write_batch", records, records)
                drain = author.ask("sync", server.url)
                add(result, side, "offline_ops_s", records / singly)
                add(result, side, "offline_batch_ops_s", records / batch)
                add(result, side, "drain_ops_s", 2 * records / drain)
                reader = stage.client("reader")
                reader.ask("sync", server.url)
                result.equal(f"{side.name}: records drained", reader.ask("count"), 2 * records)
                same = reader.ask("digest") == author.ask("digest")
                result.expect(same, f"{side.name}: reader and author differ after the drain")
