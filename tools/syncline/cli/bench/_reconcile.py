"""W5: three clients edit the same records offline, in orders of their own, and then meet.

Whose edit of a record is the newest differs from record to record, and has nothing to do with who
arrives when: all winners must be the ones with the largest ``updatedAt``, by whatever order of
arrival.
"""

from __future__ import annotations

import time

from ._actor import Actor, together
from ._bench import Bench, add
from ._figures import Result, Spec
from ._scale import fields_of

CLIENTS = 3
NS_PER_S = 1e9
SPECS = (
    Spec(
        "reconcile_s",
        "s",
        "from meeting until all three are equal, each with the winners by updatedAt",
        ratio_max=2.5,
    ),
    Spec("edits_s", "ops/s", "the same, as edits a second", more_is_better=True),
)


def run(bench: Bench, result: Result) -> None:
    records = bench.scale.meeting
    for _ in bench.rounds(result):
        for side in bench.sides():
            with bench.stage(side) as stage:
                server = stage.server()
                clients = stage.clients("a", "b", "c")
                clients[0].ask("write_batch", 0, records)
                for client in clients:
                    client.ask("sync", server.url)
                winners = _edit(clients, records)
                began = time.monotonic_ns()
                together(clients, "connect", server.url)
                # What each wrote is there now; what is there shall be with each.
                took = (max(together(clients, "wait")) - began) / NS_PER_S
                add(result, side, "reconcile_s", took)
                add(result, side, "edits_s", CLIENTS * records / took)
                _check(result, side.name, clients, winners)


def _edit(clients: list[Actor], records: int) -> list[int]:
    """Let everybody edit everything; for each record, which client's edit is the newest."""
    # Later than what all have seen, or a device would stamp its edits later by itself.
    base = time.time_ns() // 1000
    winners = [number * 7919 // 13 % CLIENTS for number in range(records)]
    for index, client in enumerate(clients):
        order = [(number * 3 + index * records // CLIENTS) % records for number in range(records)]
        order = list(dict.fromkeys([*order, *range(records)]))
        # The winner of a record is the last in time, the others come before in an order of theirs.
        ages = [(index - winners[number] + CLIENTS - 1) % CLIENTS for number in order]
        stamps = [base + CLIENTS * number + age for number, age in zip(order, ages, strict=True)]
        client.tell("edit", order, index + 1, stamps)
    for client in clients:
        client.answer()
    return winners


def _check(result: Result, name: str, clients: list[Actor], winners: list[int]) -> None:
    digests = together(clients, "digest")
    result.equal(f"{name}: different states after the meeting", len(set(digests)), 1)
    titles = clients[0].ask("titles", list(range(len(winners))))
    right = sum(
        title == fields_of(number, winner + 1)["title"]
        for number, (title, winner) in enumerate(zip(titles, winners, strict=True))
    )
    result.equal(f"{name}: winners with the largest updatedAt", right, len(winners))
