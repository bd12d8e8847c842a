"""A disk of real files: SQLite's own WAL, and power cuts that tear its unsynced tail.

After each commit the bytes of the file and of its WAL are kept. A commit with ``synchronous=FULL``
has synced the WAL, so it is durable up to there; what a later commit with ``NORMAL`` appended may
be lost, torn in the middle of a frame, or come back as garbage after a power cut. Each opening
gets fresh files with the bytes that survived, as a machine finds them after the cut; SQLite's
recovery does the rest.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ._disk import Disk, SimConnection


class Image(NamedTuple):
    """What lies on the disk: the database, its WAL, and how much of that is synced."""

    file: bytes
    wal: bytes
    synced: int


class FileDisk(Disk[Image]):
    """One device's disk, in a folder."""

    def __init__(
        self, rng: random.Random, on_fault: Callable[[str], None], folder: Path, name: str
    ) -> None:
        super().__init__(rng, on_fault)
        self._folder = folder
        self._name = name
        self._openings = 0
        self._path = folder / name

    def connect(self, path: Path, /) -> sqlite3.Connection:
        self._openings += 1
        self._path = self._folder / f"{self._name}-{self._openings}.db"
        if self._committed is not None:
            self._path.write_bytes(self._committed.file)
            self._wal.write_bytes(self._committed.wal)
        connection = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, factory=SimConnection
        )
        connection.disk = self
        if self._committed is None:
            connection.execute("PRAGMA page_size=512")
        return connection

    @property
    def _wal(self) -> Path:
        return self._path.with_name(self._path.name + "-wal")

    def _image(self, connection: SimConnection, *, forced: bool) -> Image:
        wal = self._wal.read_bytes() if self._wal.exists() else b""
        before = 0 if self._committed is None else self._committed.synced
        return Image(self._path.read_bytes(), wal, len(wal) if forced else min(before, len(wal)))

    def lose_power(self) -> bool:
        """The WAL's unsynced tail is gone, torn or garbage; whether there was one."""
        image = self._committed
        if image is None or image.synced >= len(image.wal):
            return False
        kept = self._rng.randint(image.synced, len(image.wal))
        tail = image.wal[image.synced : kept]
        if self._rng.random() < 0.3:
            tail = self._rng.randbytes(len(tail))
        wal = image.wal[: image.synced] + tail
        self._committed = self._durable = Image(image.file, wal, len(wal))
        return True
