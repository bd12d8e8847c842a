"""W2: a fresh client fetches everything, with the memory of both ends; and again through cuts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
    can = {
        "client_peak_mib": bench.excuse_memory(result, "client_peak_mib"),
        "server_peak_mib": bench.excuse_memory(result, "server_peak_mib", server=True),
        "cuts": bench.excuse_relay(result, "bootstrap_cut_s", "wire_mib", "cut_wire_times"),
    }
    for records, small in ((bench.scale.records, True), (bench.scale.records_many, False)):
        with ExitStack() as exits:
            filled = []
            for side in bench.sides():
                bench.say(f"{result.name}: {records:,} records go to {side.name}'s server")
                filled.append(_filled(exits.enter_context(bench.stage(side)), records))
            for _ in bench.rounds(result):
                for one in filled:
                    if small:
                        _fetch(result, one, "_small_s")
                    else:
                        _fetch_many(result, one, can)


@dataclass
class _Filled:
    """A server that holds so many records, and the digest of what must arrive.

    ``whole_bytes`` is what a first sync moves without a cut, once that was measured.
    """

    stage: Stage
    server: Server
    records: int
    digest: str
    whole_bytes: int = 0

    def check(self, result: Result, reader: Actor) -> None:
        name = self.stage.side.name
        result.equal(f"{name}: records fetched", reader.ask("count"), self.records)
        same = reader.ask("digest") == self.digest
        result.expect(same, f"{name}: the fetched records differ from the author's")

    @contextmanager
    def reader(self, result: Result) -> Iterator[Actor]:
        """A fresh client, which must have everything in the end; then it is forgotten."""
        reader = self.stage.client("reader")
        yield reader
        self.check(result, reader)
        self.stage.end(reader)
        self.stage.remove("reader")


def _filled(stage: Stage, records: int) -> _Filled:
    server = stage.server()
    author = stage.client("author")
    fill(author, server.url, 0, records)
    filled = _Filled(stage, server, records, author.ask("digest"))
    stage.end(author)
    stage.remove("author")
    return filled


def _fetch(result: Result, filled: _Filled, suffix: str) -> float | None:
    """A first sync; the client's peak memory in MiB, where it can be told."""
    side = filled.stage.side
    with filled.reader(result) as reader:
        took = reader.ask("sync", filled.server.url)
        add(result, side, f"bootstrap{suffix}", took)
        add(result, side, f"records{suffix}", filled.records / took)
        return _memory.peak_mib(reader.pid) if _memory.can_measure() else None


def _fetch_many(result: Result, filled: _Filled, can: dict[str, bool]) -> None:
    # A server that was just started: its peak is that of serving, not of having been filled.
    stage = filled.stage
    stage.stop(filled.server)
    filled.server = stage.server()
    peak = _fetch(result, filled, "_s")
    if peak is not None:
        add(result, stage.side, "client_peak_mib", peak)
    if can["server_peak_mib"] and filled.server.process is not None:
        pid = filled.server.process.pid
        add(result, stage.side, "server_peak_mib", _memory.peak_mib(pid))
    if not can["cuts"]:
        return
    with stage.metered(filled.server) as (meter, url):
        if not filled.whole_bytes:
            _, filled.whole_bytes = _fetch_through(result, filled, meter, url, 0)
            add(result, stage.side, "wire_mib", filled.whole_bytes / (1 << 20))
        took, moved = _fetch_through(result, filled, meter, url, CUTS)
        add(result, stage.side, "bootstrap_cut_s", took)
        add(result, stage.side, "cut_wire_times", moved / filled.whole_bytes)


def _fetch_through(
    result: Result, filled: _Filled, meter: Actor, url: str, cuts: int
) -> tuple[float, int]:
    """Fetch through the meter; how long it took, and how many bytes it was."""
    with filled.reader(result) as reader:
        meter.ask("cut_every", filled.whole_bytes // (cuts + 1) if cuts else None, cuts)
        took = reader.ask("sync_through", url)
        up, down, happened = meter.ask("passed")
        result.equal(f"{filled.stage.side.name}: cuts on the way", happened, cuts)
        return took, up + down
