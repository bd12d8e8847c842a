"""What a client process can be told to do, by whichever side plays it.

Both sides (Syncline's devices and the floor's) answer the same words, so that a workload is written
once and the same script is played to each. Times are seconds; ``stamps`` are microseconds since the
Unix epoch; moments are nanoseconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Part(Protocol):
    """A client in a process of its own."""

    def open(self, path: str, name: str, session: str, token: str | None) -> None:
        """Open or make the file at this path; ``name`` is the client's."""

    def close(self) -> None:
        """Disconnect and close the file."""

    def write(self, first: int, count: int) -> float:
        """Write so many records, each in a commit of its own; how long it took."""

    def write_batch(self, first: int, count: int) -> float:
        """The same number of ops in one commit."""

    def edit(self, order: list[int], edition: int, stamps: list[int]) -> None:
        """Write these records again, in this order, with these times of change; one commit."""

    def sync(self, url: str) -> float:
        """Connect, send all, take all, disconnect; how long it took."""

    def sync_through(self, url: str) -> float:
        """The same on a connection that may break, again and again, until it is done."""

    def connect(self, url: str) -> None:
        """Stay connected from now on; returns when all is synced."""

    def disconnect(self) -> None:
        """End the connection."""

    def wait(self) -> int:
        """Until what is written here is there and what is there is here; the moment it was so."""

    def watch(self) -> None:
        """Note from now on when each record of others is committed here."""

    def await_seen(self, count: int) -> int:
        """Until so many records of others were seen since ``watch``; the moment of the last."""

    def seen(self) -> dict[int, int]:
        """The moment at which each record (by number) was first seen since ``watch``."""

    def write_paced(self, first: int, count: int, per_second: float) -> dict[int, int]:
        """Write so many a second, a commit each; the moment before each write began."""

    def write_burst(self, first: int, count: int, batch: bool) -> int:
        """Write in one batch or with a commit each, as fast as it goes; the moment of beginning."""

    def count(self) -> int:
        """How many records show here."""

    def digest(self) -> str:
        """Of all that shows here, ids and fields; equal states have equal ones, on both sides."""

    def titles(self, numbers: Iterable[int]) -> list[str]:
        """The titles of these records, which tell their editions."""
