"""The network between devices and the server: in order on a connection, and nothing else sure.

A connection delays, may stall, may go half-open (one end hears nothing more, and nothing is said)
and may be cut, which takes along what is under way. Cuts are told to each end in its own time.
What no honest network does, a proxy or a bug may: lose a frame of the client's, or say one twice.
"""

from __future__ import annotations

from collections.abc import Callable

from ._clock import Scheduler

DELAY_US = (200, 80_000)
NOTICE_US = (0, 300_000)


class Wire:
    """One connection: two directions, each in order."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        to_server: Callable[[bytes], None],
        to_client: Callable[[bytes], None],
        server_closed: Callable[[], None],
        client_closed: Callable[[str], None],
        drained: Callable[[int], None],
    ) -> None:
        self._scheduler = scheduler
        self._deliver = {"up": to_server, "down": to_client}
        self._server_closed = server_closed
        self._client_closed = client_closed
        self._drained = drained
        self._free_at = {"up": 0, "down": 0}
        self._mute = {"up": False, "down": False}
        self.under_way = 0
        self.open = True
        self.closing = False
        """The server has hung up; the client is going to hear of it."""
        self.slow_us = 0
        self.double = 0
        self.lose_up = False
        self.on_fault: Callable[[str], None] = lambda kind: None

    def send_up(self, data: bytes) -> None:
        self._send("up", data)

    def send_down(self, data: bytes) -> None:
        self._send("down", data)

    def _send(self, way: str, data: bytes) -> None:
        if not self.open:
            return
        now = self._scheduler.now
        delay = self._scheduler.between(*DELAY_US) + self.slow_us
        at = max(self._free_at[way], now + delay)
        self._free_at[way] = at
        self.under_way += 1

        def arrive() -> None:
            self.under_way -= 1
            if not self.open or self._mute[way]:
                return
            if way == "up" and self.lose_up:
                self.lose_up = False
                self.on_fault("lost frame")
                return
            if self.double:
                self.double -= 1
                self.on_fault("said twice")
                self._deliver[way](data)
            if way == "down":
                self._drained(len(data))
            self._deliver[way](data)

        self._scheduler.after(at - now, arrive)

    def cut(self, reason: str = "cut") -> bool:
        """Break it: what is under way is lost. Whether it was still whole."""
        if not self.open:
            return False
        self.open = False
        self._scheduler.after(self._scheduler.between(*NOTICE_US), self._server_closed)
        self._scheduler.after(
            self._scheduler.between(*NOTICE_US), lambda: self._client_closed(reason)
        )
        return True

    def close_from_client(self) -> None:
        """The client hangs up (or died); the server hears of it after what was sent."""
        if self.open:
            self.open = False
            self._scheduler.after(self._scheduler.between(*NOTICE_US), self._server_closed)

    def close_from_server(self, reason: str) -> None:
        """The server hangs up, after what it sent before has arrived."""
        self.closing = True
        now = self._scheduler.now
        wait = max(0, self._free_at["down"] - now) + self._scheduler.between(*NOTICE_US)

        def arrive() -> None:
            if self.open:
                self.open = False
                self._client_closed(reason)

        self._scheduler.after(wait, arrive)

    @property
    def is_muted(self) -> bool:
        return any(self._mute.values())

    def half_open(self) -> bool:
        """From now on some direction delivers nothing, and nobody is told."""
        ways = self._scheduler.random.choice((("up",), ("down",), ("up", "down")))
        before = dict(self._mute)
        for way in ways:
            self._mute[way] = True
        return self.open and self._mute != before

    def stall(self, delay_us: int) -> bool:
        """Everything under way and to come is late by that much."""
        for way in self._free_at:
            self._free_at[way] = max(self._free_at[way], self._scheduler.now) + delay_us
        return self.open
