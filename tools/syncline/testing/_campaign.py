"""Many worlds: a campaign over seeds, on all cores, and the small world that shows what is wrong.

A failing world is made smaller while it still breaks the same promise: without one kind of fault
at a time, with fewer devices, with fewer writes. What is left is replayed by one line.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from typing import Any

from ._checkers import Violation
from ._world import Options, Result, World

CHUNK = 8
"""Seeds that a worker takes at once: enough to hide what handing them over costs."""


@dataclass(slots=True)
class Failure:
    """A world that broke a promise, in its smallest form."""

    seed: int
    options: Options
    violations: list[Violation]
    trace: list[str]

    @property
    def replay(self) -> str:
        """The command that plays exactly this world again."""
        words = [f"syncline simulate --replay {self.seed} --writes {self.options.writes}"]
        if self.options.devices is not None:
            words.append(f"--devices {self.options.devices}")
        if self.options.faults is not None:
            words.append(f"--faults '{','.join(self.options.faults) or 'none'}'")
        if self.options.force:
            words.append(f"--force '{','.join(self.options.force)}'")
        return " ".join(words)


@dataclass(slots=True)
class Campaign:
    """What a campaign saw."""

    seeds: int = 0
    steps: int = 0
    ops: int = 0
    entries: int = 0
    virtual_us: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.steps += result.steps
        self.ops += result.ops
        self.entries += result.entries
        self.virtual_us += result.virtual_us
        self.faults.update(result.faults)

    def as_json(self) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "steps": self.steps,
            "virtual_hours": round(self.virtual_us / 3.6e9, 3),
            "ops": self.ops,
            "faults": dict(sorted(self.faults.items())),
            "violations": [
                {
                    "seed": failure.seed,
                    "promise": failure.violations[0].promise,
                    "story": failure.violations[0].story,
                    "replay": failure.replay,
                }
                for failure in self.failures
            ],
            "seconds": round(self.seconds, 1),
        }


def play(seed: int, options: Options) -> Result:
    """One world. An exception that escapes the product is a violation like any other."""
    with _no_news():
        world = World(seed, options)
        try:
            return world.run()
        except Exception as error:
            result = world.result
            result.violations.append(Violation("sound", f"{type(error).__name__}: {error}"))
            return result
        finally:
            world.close()


@contextmanager
def _no_news() -> Iterator[None]:
    """Full disks and commits without an answer are what a world is made of: nobody logs them."""
    logger = logging.getLogger("syncline")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def run(
    seeds: Iterable[int],
    options: Options,
    *,
    processes: int | None = None,
    progress: Callable[[Campaign], None] = lambda campaign: None,
    failures_max: int = 5,
) -> Campaign:
    """Play these seeds. Stops early when ``failures_max`` worlds have broken a promise."""
    began = time.monotonic()
    campaign = Campaign()
    for result in _results(list(seeds), options, processes or os.cpu_count() or 1):
        campaign.add(result)
        if result.violations:
            campaign.failures.append(shrink(result.seed, options))
        campaign.seconds = time.monotonic() - began
        progress(campaign)
        if len(campaign.failures) >= failures_max:
            break
    return campaign


def _results(seeds: list[int], options: Options, processes: int) -> Iterator[Result]:
    if processes == 1 or len(seeds) <= CHUNK:
        yield from (play(seed, options) for seed in seeds)
        return
    # Forked workers would hold each other's pipes open, and outlive a parent that is killed.
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
    try:
        yield from pool.map(partial(_slim, options=options), seeds, chunksize=CHUNK)
    finally:
        pool.shutdown(cancel_futures=True)


def _slim(seed: int, *, options: Options) -> Result:
    result = play(seed, options)
    result.trace.clear()  # A failing seed is played again where its story is wanted.
    return result


def shrink(seed: int, options: Options) -> Failure:
    """The smallest world that still breaks the same promise, by taking away one thing at a time."""
    result = play(seed, options)
    promise = result.violations[0].promise
    world = World(seed, options)
    best = replace(options, devices=len(world.devices), faults=world.kinds, force=())
    if not _breaks(seed, best, promise):
        best = options
    while (smaller := _smaller(seed, best, promise)) is not None:
        best = smaller
    final = play(seed, best)
    return Failure(seed, best, final.violations, final.trace)


def _smaller(seed: int, options: Options, promise: str) -> Options | None:
    kinds = options.faults or ()
    candidates = [
        replace(options, faults=tuple(kind for kind in kinds if kind != dropped))
        for dropped in kinds
    ]
    if options.devices is not None and options.devices > 1:
        candidates.append(replace(options, devices=options.devices - 1))
    if options.writes > 4:
        candidates.append(replace(options, writes=options.writes * 2 // 3))
    return next((c for c in candidates if _breaks(seed, c, promise)), None)


def _breaks(seed: int, options: Options, promise: str) -> bool:
    return any(v.promise == promise for v in play(seed, options).violations)
