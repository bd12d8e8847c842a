"""Virtual time: one heap of what happens next, one seeded source of chance.

Nothing in a simulated world reads a clock or draws a number anywhere else, so that a seed is a
whole history: the same one on every run and every machine.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

START_US = 1_760_000_000_000_000
"""Microseconds since the Unix epoch at which every world begins."""
STEPS_BETWEEN_LOOKS = 8
"""To find out whether all is done takes longer than a step."""


class Scheduler:
    """Runs what was scheduled, in the order of its time, then of its being scheduled."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = START_US
        self.steps = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, delay_us: int, call: Callable[[], None]) -> None:
        """Call this ``delay_us`` microseconds from now."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + max(0, delay_us), self._count, call))

    def run(self, *, until: int, steps_max: int, done: Callable[[], bool] | None = None) -> bool:
        """Run up to that time, or until ``done``. False when ``steps_max`` did not suffice."""
        for _ in range(steps_max):
            if done is not None and self.steps % STEPS_BETWEEN_LOOKS == 0 and done():
                return True
            if not self._heap or self._heap[0][0] > until:
                self.now = max(self.now, until)
                return True
            self.now, _, call = heapq.heappop(self._heap)
            self.steps += 1
            call()
        return False

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def between(self, low: int, high: int) -> int:
        return self.random.randint(low, high)
