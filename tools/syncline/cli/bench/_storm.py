"""W7: a crowd reconnects at once after a server's restart, to ops that it missed meanwhile."""

from __future__ import annotations

import time

from . import _memory
from ._actor import together
from ._bench import ELSEWHERE, Bench, fill
from ._cost import gather_crowd
from ._figures import Result, Spec
from ._stage import SYNCLINE, Stage

NS_PER_S = 1e9
SPECS = (
    Spec(
        "storm_s",
        "s",
        "from the server's listening again until the last client has caught up",
        most=10,
        baseline=None,
    ),
    Spec("storm_failures", "clients", "who never caught up", most=0, baseline=None),
    Spec(
        "storm_retries",
        "attempts",
        "connections that were turned away or broke, and were made again after a pause",
        baseline=None,
    ),
    Spec("storm_peak_mib", "MiB", "the most memory of the server meanwhile", baseline=None),
)


def run(bench: Bench, result: Result) -> None:
    if bench.url is not None:
        result.cannot([spec.name for spec in SPECS], f"{ELSEWHERE}, nor restart it")
        return
    with_memory = bench.excuse_memory(result, "storm_peak_mib")
    for _ in bench.rounds(result, bench.runs if bench.full else 1):
        with bench.stage(SYNCLINE) as stage:
            _storm(bench, result, stage, with_memory)


def _storm(bench: Bench, result: Result, stage: Stage, with_memory: bool) -> None:
    scale = bench.scale
    server = stage.server()
    author = stage.client("author")
    fill(author, server.url, 0, scale.records)
    crowd = gather_crowd(stage, server, scale.connections)
    cursor = crowd[0].ask("head", server.url)
    together(crowd, "gather", server.url, cursor)
    port = server.port
    stage.stop(server)
    together(crowd, "part")
    author.ask("write_batch", scale.records, scale.missed)
    server = stage.server(port)
    began = time.monotonic_ns()
    # Whoever wrote meanwhile comes back in the same rush.
    for client in crowd:
        client.tell("catch_up", server.url, cursor, cursor[1] + scale.missed)
    author.ask("sync", server.url)
    caught = [client.answer() for client in crowd]
    failed = [reason for one in caught for reason in one.failed]
    result.add("storm_s", (max(one.last_at for one in caught) - began) / NS_PER_S)
    result.add("storm_failures", len(failed))
    result.add("storm_retries", sum(one.dropped for one in caught))
    if with_memory and server.process is not None:
        result.add("storm_peak_mib", _memory.peak_mib(server.process.pid))
    result.expect(not failed, f"{len(failed)} clients never caught up, such as {failed[:1]}")
    digests = set().union(*(one.digests for one in caught))
    result.equal("different logs that were caught up with", len(digests), 1)
    reader = stage.client("reader")
    reader.ask("sync", server.url)
    result.equal("records", reader.ask("count"), scale.records + scale.missed)
    same = reader.ask("digest") == author.ask("digest")
    result.expect(same, "reader and author differ after the storm")
