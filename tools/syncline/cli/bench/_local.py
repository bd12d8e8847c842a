"""W8: reads and writes through the public API, beside bare ``sqlite3``."""

from __future__ import annotations

from ._actor import Actor
from ._bench import Bench, add
from ._figures import Result, Spec
from ._stage import SYNCLINE, Side

LIST_RECORDS = 1000
TIMES = 20
BARE = Side("bare sqlite3", (), "_bare:Bare")


def _spec(name: str, unit: str, says: str, ratio_max: float) -> Spec:
    return Spec(name, unit, says, more_is_better=True, ratio_max=ratio_max, baseline="bare sqlite3")


SPECS = (
    _spec("write_ops_s", "ops/s", "one record per commit", 2),
    _spec("batch_ops_s", "ops/s", "1,000 ops in one batch, one commit", 2),
    _spec("transaction_ops_s", "records/s", "1,000 records as one op, one commit", 2),
    _spec("get_ops_s", "reads/s", "records read one by one, by their ids", 1.5),
    _spec("list_records_s", "records/s", "a collection of 1,000 records, read whole", 1.5),
    _spec("count_ops_s", "counts/s", "counting those 1,000", 1.5),
)


def run(bench: Bench, result: Result) -> None:
    singles = min(bench.scale.local_singles, LIST_RECORDS)
    for _ in bench.rounds(result):
        digests = set()
        for side in (SYNCLINE, BARE):
            with bench.stage(side) as stage:
                client = stage.client("client")
                _measure(client, side, result, singles)
                result.equal(f"{side.name}: records", client.ask("count"), 3 * LIST_RECORDS)
                digests.add(client.ask("digest"))
        result.equal("states after the same writes", len(digests), 1)


def _measure(client: Actor, side: Side, result: Result, singles: int) -> None:
    add(result, side, "write_ops_s", singles / client.ask("write", 0, singles))
    rest = LIST_RECORDS - singles
    if rest:
        client.ask("write_batch", singles, rest)
    listing, counting = client.ask("list_all", TIMES), client.ask("count_all", TIMES)
    add(result, side, "list_records_s", TIMES * LIST_RECORDS / listing)
    add(result, side, "count_ops_s", TIMES / counting)
    for first, name in ((1, "batch"), (2, "transaction")):
        took = client.ask(f"write_{name}", first * LIST_RECORDS, LIST_RECORDS)
        add(result, side, f"{name}_ops_s", LIST_RECORDS / took)
    # Some order that is none: every read is of another page.
    numbers = [number * 7919 % (3 * LIST_RECORDS) for number in range(3 * LIST_RECORDS)]
    add(result, side, "get_ops_s", len(numbers) / client.ask("get", numbers))
