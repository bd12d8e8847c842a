"""What all workloads work with: scale, runs, where files go, and who is told of progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from . import _memory
from ._actor import Actor
from ._figures import Result
from ._scale import Scale
from ._stage import FLOOR, SYNCLINE, Side, Stage

PART_RECORDS = 50_000
ELSEWHERE = "the server runs elsewhere: --server cannot look into its process or its files"


@dataclass(frozen=True)
class Bench:
    """How to measure. ``url`` is a server that runs already, ``token`` what opens it."""

    scale: Scale
    runs: int
    folder: Path
    full: bool = False
    url: str | None = None
    token: str | None = None
    say: Callable[[str], None] = lambda sentence: None

    def sides(self, *, online: bool = True) -> tuple[Side, ...]:
        """Who is measured, in turn. A server elsewhere has no floor to be compared with."""
        return (SYNCLINE,) if self.url is not None and online else (SYNCLINE, FLOOR)

    def stage(self, side: Side) -> Stage:
        return Stage(self.folder, side, self.url if side is SYNCLINE else None, self.token)

    def rounds(self, result: Result, runs: int | None = None) -> Iterator[int]:
        """The runs, each said."""
        runs = runs or self.runs
        result.sizes["runs"] = runs
        for run in range(runs):
            self.say(f"{result.name}: run {run + 1} of {runs}")
            yield run

    def excuse_memory(self, result: Result, *names: str, server: bool = False) -> bool:
        """Whether memory can be measured; else these figures are excused, with the reason."""
        if server and self.url is not None:
            result.cannot(names, ELSEWHERE)
        elif not _memory.can_measure():
            result.cannot(names, _memory.WHERE)
        else:
            return True
        return False

    def excuse_relay(self, result: Result, *names: str) -> bool:
        """Whether bytes can be counted on the way; else these figures are excused."""
        there = self.url is None or urlsplit(self.url).scheme == "ws"
        if not there:
            result.cannot(names, "the relay that counts bytes does not speak TLS")
        return there


def fill(author: Actor, url: str, first: int, count: int) -> None:
    """Let an author write so many records and drain them; in parts, so that no outbox is huge."""
    for start in range(first, first + count, PART_RECORDS):
        author.ask("write_batch", start, min(PART_RECORDS, first + count - start))
        author.ask("sync", url)


def add(result: Result, side: Side, name: str, value: float) -> None:
    """A value of this side's run."""
    (result.add if side is SYNCLINE else result.add_baseline)(name, value)
