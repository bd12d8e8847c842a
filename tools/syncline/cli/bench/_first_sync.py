"""W2: a fresh client fetches everything, with the memory of both ends; and again through cuts."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from . import _memory
from ._actor import Actor
from ._bench import Bench, add, fill
from ._figures import Result, Spec
from ._stage import Server, Stage

CUTS = 5
SPECS = (
    Spec("bootstrap_s", "s", "a fresh client's first sync of the larger number", ratio_max=0.4),
    Spec("records_s", "records/s", "the same, as records a second", more_is_better=True),
    Spec("bootstrap_small_s", "s", "a first sync of the smaller number"),
    Spec("records_small_s", "records/s", "the same, as records a second", more_is_better=True),
    Spec("client_peak_mib", "MiB", "the most memory of the fetching client", most=100),
    Spec("server_peak_mib", "MiB", "the most memory of the server, started anew", most=100),
    Spec("bootstrap_cut_s", "s", "the larger, with the connection cut five times on the way"),
    Spec("wire_mib", "MiB", "what the larger first sync moves, both ways"),
    Spec(
        "cut_wire_times",
        "×",
        "what moves with the cuts, as a multiple of that without",
        most=1.15,
    ),
)


def run(bench: Bench, result: Result) -> None:
    memory = [
        name
        for name, there in (
            ("client_peak_mib", bench.excuse_memory(result, "client_peak_mib")),
            ("server_peak_mib", bench.excuse_memory(result, "server_peak_mib", server=True)),
        )
        if there
    ]
    for records, small in ((bench.scale.records, True), (bench.scale.records_many, False)):
        with ExitStack() as exits:
            filled = []
            for side in bench.sides():
                bench.say(f"{result.name}: {records} records go to {side.name}'s server")
                filled.append(_filled(exits.enter_context(bench.stage(side)), records))
            for _ in bench.rounds(result):
                for one in filled:
                    _fetch_all(result, one, small, memory)


@dataclass
class _Filled:
    """A server's file that holds so many records, and the digest of what must arrive."""

    stage: Stage
    records: int
    digest: str
    whole_bytes: int = 0
    """What a first sync moves without a cut, once that was measured."""

    def check(self, result: Result, reader: Actor) -> None:
        name = self.stage.side.name
        result.equal(f"{name}: records fetched", reader.ask("count"), self.records)
        same = reader.ask("digest") == self.digest
        result.expect(same, f"{name}: the fetched records differ from the author's")


def _filled(stage: Stage, records: int) -> _Filled:
    server = stage.server()
    author = stage.client("author")
    fill(author, server.url, 0, records)
    filled = _Filled(stage, records, author.ask("digest"))
    stage.end(author)
    stage.remove("author")
    stage.stop(server)
    return filled


def _fetch_all(result: Result, filled: _Filled, small: bool, memory: list[str]) -> None:
    # A server that was just started: its peak is that of serving, not of having been filled.
    stage = filled.stage
    server = stage.server()
    _fetch(result, filled, server, small, memory)
    if not small:
        meter = stage.actor("meter", "_meter:Meter")
        url = meter.ask("listen", server.url)
        if not filled.whole_bytes:
            _, filled.whole_bytes = _fetch_through(result, filled, meter, url, 0)
            add(result, stage.side, "wire_mib", filled.whole_bytes / (1 << 20))
        took, moved = _fetch_through(result, filled, meter, url, CUTS)
        add(result, stage.side, "bootstrap_cut_s", took)
        add(result, stage.side, "cut_wire_times", moved / filled.whole_bytes)
        stage.end(meter)
    stage.stop(server)


def _fetch(result: Result, filled: _Filled, server: Server, small: bool, memory: list[str]) -> None:
    stage = filled.stage
    reader = stage.client("reader")
    took = reader.ask("sync", server.url)
    suffix = "_small_s" if small else "_s"
    add(result, stage.side, f"bootstrap{suffix}", took)
    add(result, stage.side, f"records{suffix}", filled.records / took)
    if not small:
        if "client_peak_mib" in memory:
            add(result, stage.side, "client_peak_mib", _memory.peak_mib(reader.pid))
        if "server_peak_mib" in memory and server.process is not None:
            add(result, stage.side, "server_peak_mib", _memory.peak_mib(server.process.pid))
    filled.check(result, reader)
    stage.end(reader)
    stage.remove("reader")


def _fetch_through(
    result: Result, filled: _Filled, meter: Actor, url: str, cuts: int
) -> tuple[float, int]:
    """Fetch through the meter; how long it took, and how many bytes it was."""
    stage = filled.stage
    reader = stage.client("reader")
    meter.ask("cut_every", filled.whole_bytes // (cuts + 1) if cuts else None, cuts)
    took = reader.ask("sync_through", url)
    up, down, happened = meter.ask("passed")
    result.equal(f"{stage.side.name}: cuts on the way", happened, cuts)
    filled.check(result, reader)
    stage.end(reader)
    stage.remove("reader")
    return took, up + down
