"""How a runner waits: for something to happen, or for a time.

A runner never waits otherwise, so that a test that hands in another ``Timing`` (and the replica's
``clock``) decides what time it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol


class Timing(Protocol):
    """Waiting."""

    async def wait(self, event: asyncio.Event, us: int | None) -> None:
        """Until ``event`` is set, or ``us`` microseconds went by (None: there is no such time)."""


class RealTiming:
    """As the event loop's clock goes."""

    async def wait(self, event: asyncio.Event, us: int | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if us is None else max(0, us) / 1e6):
                await event.wait()
