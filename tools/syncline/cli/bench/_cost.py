"""W6: what an op and a connection cost, in bytes, memory and time, and how that grows with the log.

At each length of the log: an author that has written it all, a reader that has fetched it, and the
server started anew on its file. Then more ops go through a relay that counts. The payload is the
JSON of the fields; every cost in bytes is a multiple of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from . import _memory
from ._actor import Actor, together
from ._bench import ELSEWHERE, Bench, fill
from ._crowd import shares
from ._figures import Result, Spec
from ._scale import payload_bytes
from ._stage import SYNCLINE, Server, Stage

PROCESSES = 4
PUSHES = 3
GROWTH_MAX = 1.2
US_PER_S = 1e6
WIRE_MAX, DISK_MAX = 1.5, 3.0


def _times(name: str, says: str, most: float | None = None) -> Spec:
    return Spec(name, "× payload", says, most=most, baseline=None)


_WIRE = (
    _times("wire_author_times", "an op at its author, both ways", WIRE_MAX),
    _times("wire_reader_times", "an op at another live client, both ways", WIRE_MAX),
    _times("wire_bootstrap_times", "a record of a first sync, both ways", WIRE_MAX),
)
_DISK = (
    _times("disk_author_times", "the author's file at rest, per op", DISK_MAX),
    _times("disk_reader_times", "the file of one who fetched all, per record", DISK_MAX),
)
_DISK_SERVER = (_times("disk_server_times", "the server's file at rest, per op", DISK_MAX),)
_TIME = (Spec("op_us", "µs", "pushing one more op of many", baseline=None),)
_SERVER = (
    Spec("start_s", "s", "from starting the server until it listens", baseline=None),
    Spec("server_idle_mib", "MiB", "what the server holds when nobody is there", baseline=None),
    Spec("idle_connection_kib", "KiB", "server memory per idle connection", most=30, baseline=None),
)
_COSTS = (*_WIRE, *_DISK, *_DISK_SERVER, *_TIME, *_SERVER)
SPECS = (
    *_COSTS,
    *(
        Spec(
            f"{spec.name}_growth",
            "×",
            f"{spec.name} at the longest log, as a multiple of that at the shortest",
            most=GROWTH_MAX,
            baseline=None,
        )
        for spec in _COSTS
    ),
)


def run(bench: Bench, result: Result) -> None:
    _excuse(bench, result)
    for _ in bench.rounds(result, bench.runs if bench.full else 1):
        found = []
        for entries in bench.scale.entries:
            bench.say(f"{result.name}: at {entries:,} entries")
            with bench.stage(SYNCLINE) as stage:
                costs = _Costs(bench, result, stage, entries)
                found.append(dict(costs.measure()))
            result.details.append({"entries": entries, **found[-1]})
        for name, value in found[-1].items():
            result.add(name, value)
            if found[0].get(name):
                result.add(f"{name}_growth", value / found[0][name])


def _excuse(bench: Bench, result: Result) -> None:
    def cannot(specs: tuple[Spec, ...], why: str) -> None:
        names = [spec.name for spec in specs]
        result.cannot([*names, *(f"{name}_growth" for name in names)], why)

    if not _memory.can_measure():
        cannot(_SERVER[1:], _memory.WHERE)
    if bench.url is not None:
        cannot((*_SERVER, *_DISK_SERVER), ELSEWHERE)
    bench.excuse_relay(result, *(f"{spec.name}{end}" for spec in _WIRE for end in ("", "_growth")))


class _Costs:
    """One length of the log: fill it, then measure everything once."""

    def __init__(self, bench: Bench, result: Result, stage: Stage, entries: int) -> None:
        self._bench = bench
        self._result = result
        self._stage = stage
        self._entries = entries
        self._written = entries
        self._payload = payload_bytes(entries, bench.scale.added) / bench.scale.added

    def measure(self) -> Iterator[tuple[str, float]]:
        """Each figure that can be measured here, by name."""
        stage, can = self._stage, self._can
        server = stage.server()
        author = stage.client("author")
        fill(author, server.url, 0, self._entries)
        reader = stage.client("reader")
        if can("wire_bootstrap_times"):
            with stage.metered(server) as (meter, url):
                reader.ask("sync", url)
                up, down, _ = meter.ask("passed")
            yield "wire_bootstrap_times", (up + down) / self._entries / self._payload
        else:
            reader.ask("sync", server.url)
        stage.end(author, reader)
        for name in ("author", "reader"):
            yield f"disk_{name}_times", self._on_disk(stage.disk_bytes(f"{name}.db"))
        if can("disk_server_times"):
            stage.stop(server)
            yield "disk_server_times", self._on_disk(stage.disk_bytes("server.db"))
            starts = []
            for _ in range(self._bench.scale.starts):
                stage.stop(server)
                server = stage.server()
                starts.append(server.start_s)
            yield "start_s", statistics.median(starts)
            yield from self._memory(server)
        yield from self._more(server)

    def _can(self, name: str) -> bool:
        return name not in self._result.not_measured

    def _on_disk(self, size: int) -> float:
        return size / self._entries / self._payload

    def _memory(self, server: Server) -> Iterator[tuple[str, float]]:
        """What an idle server holds, and what each idle connection adds."""
        if not self._can("idle_connection_kib"):
            return
        assert server.process is not None
        pid = server.process.pid
        crowd = gather_crowd(self._stage, server, self._bench.scale.connections)
        # After a first guest: what the server needs once is not a connection's.
        cursor = crowd[0].ask("head", server.url)
        before = _memory.resident_kib(pid)
        yield "server_idle_mib", before / 1024
        together(crowd, "gather", server.url, cursor)
        added = _memory.resident_kib(pid) - before
        yield "idle_connection_kib", max(0.0, added / self._bench.scale.connections)
        self._stage.end(*crowd)

    def _more(self, server: Server) -> Iterator[tuple[str, float]]:
        """Ops on top of what is there: what they take in time, and on the wire at both ends."""
        stage, added = self._stage, self._bench.scale.added
        author, reader = stage.clients("author", "reader")
        took = [self._push(author, server.url) for _ in range(PUSHES)]
        yield "op_us", statistics.median(took) * US_PER_S / added
        if self._can("wire_author_times"):
            with (
                stage.metered(server) as (meter, url),
                stage.metered(server) as (its, its_url),
            ):
                reader.ask("connect", its_url)
                its.ask("passed")
                self._push(author, url)
                reader.ask("wait")
                for name, counter in (("author", meter), ("reader", its)):
                    up, down, _ = counter.ask("passed")
                    yield f"wire_{name}_times", (up + down) / added / self._payload
                reader.ask("disconnect")
        else:
            reader.ask("sync", server.url)
        where = f"after {self._entries} entries"
        self._result.equal(f"records {where}", reader.ask("count"), self._written)
        same = reader.ask("digest") == author.ask("digest")
        self._result.expect(same, f"reader and author differ {where}")

    def _push(self, author: Actor, url: str) -> float:
        author.ask("write_batch", self._written, self._bench.scale.added)
        self._written += self._bench.scale.added
        took: float = author.ask("sync", url)
        return took


def gather_crowd(stage: Stage, server: Server, connections: int) -> list[Actor]:
    """A crowd of so many, from at most four processes, not connected yet."""
    crowd = []
    for index, count in enumerate(shares(connections, PROCESSES)):
        actor = stage.actor(f"crowd-{index + 1}", "_crowd:Crowd")
        actor.ask("open", actor.name.rpartition(" ")[2], stage.session, stage.token, count)
        crowd.append(actor)
    return crowd
