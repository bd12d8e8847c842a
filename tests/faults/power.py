"""Power cuts on real SQLite files: what was not synced to the disk is lost, kept, torn or garbage.

A ``PowerDisk`` watches one database in WAL mode through its connection. It knows what a disk must
hold after a cut: the log as it was at the last commit with ``synchronous=FULL`` or checkpoint, the
file as it was after the last checkpoint. Whatever was written since is at the mercy of the cut, by
sectors. The files are read with plain handles, whose closing drops the process's file locks; that
is harmless here, since nobody else opens them.
"""

from __future__ import annotations

import random
import sqlite3
from enum import Enum
from pathlib import Path
from typing import Any

SECTOR = 512
STATEMENTS_MAX = 160


class Cut(Enum):
    """What becomes of what was written and not synced."""

    LOST = "lost"
    KEPT = "kept"
    MIXED = "mixed"
    GARBLED = "garbled"


class PowerCut(BaseException):
    """The machine is off. Not an Exception: nothing in the product may survive it."""


class PowerDisk:
    """One database and its log. ``lies`` makes it a disk whose syncs do nothing."""

    def __init__(self, path: Path, rng: random.Random, *, lies: bool = False) -> None:
        self.path = path
        self._rng = rng
        self._lies = lies
        self._synced = {name: b"" for name in ("", "-wal")}
        self._left = -1
        self._target = path
        self.syncs = 0
        self.checkpoints = 0
        self.unsynced_commits = 0

    def connect(self, path: Path) -> sqlite3.Connection:
        """The connection factory of a replica."""
        db = sqlite3.connect(
            path, timeout=30, isolation_level=None, check_same_thread=False, factory=Watched
        )
        db.disk = self
        return db

    def arm(self, target: Path) -> None:
        """Cut the power at a coming statement; the files as it leaves them appear at ``target``.

        What is written now counts as synced.
        """
        self._synced = {name: self._read(name) for name in self._synced}
        self._left = self._rng.randrange(1, STATEMENTS_MAX)
        self._target = target

    def on_statement(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._image(Cut.LOST if self._lies else self._rng.choice(list(Cut)))
            raise PowerCut

    def committed(self, synchronous: int) -> None:
        if synchronous < 2:
            self.unsynced_commits += 1
        elif not self._lies:
            self.syncs += 1
            self._synced["-wal"] = self._read("-wal")

    def checkpointing(self) -> None:
        if not self._lies:
            # A checkpoint syncs the log before it writes to the file.
            self._synced["-wal"] = self._read("-wal")

    def checkpointed(self) -> None:
        if self._read("") != self._synced[""]:
            self.checkpoints += 1
        # The cut may come while the file is written to, too.
        self.on_statement()
        if not self._lies:
            self._synced[""] = self._read("")

    def _image(self, cut: Cut) -> None:
        for name, synced in self._synced.items():
            left = self._cut(cut, synced, self._read(name))
            self._target.with_name(self._target.name + name).write_bytes(left)

    def _cut(self, cut: Cut, synced: bytes, now: bytes) -> bytes:
        if cut is Cut.LOST:
            return synced
        if cut is Cut.KEPT or synced == now:
            return now
        rng = self._rng
        made = bytearray()
        for at in range(0, max(len(synced), len(now)), SECTOR):
            old, new = synced[at : at + SECTOR], now[at : at + SECTOR]
            if old == new or rng.random() < 0.5:
                made += new or old
            elif cut is Cut.GARBLED:
                # Bytes of a sector that a write did not touch stay as they are.
                kept = next((i for i, b in enumerate(new) if old[i : i + 1] != bytes([b])), 0)
                made += new[:kept] + rng.randbytes(len(new or old) - kept)
            else:
                # A sector that was never written reads as zeros where the file has grown.
                made += old or bytes(len(new))
        shortest, longest = sorted((len(synced), len(now)))
        return bytes(made[: rng.choice((shortest, longest, rng.randint(shortest, longest)))])

    def _read(self, name: str) -> bytes:
        path = self.path.with_name(self.path.name + name)
        return path.read_bytes() if path.exists() else b""


class Watched(sqlite3.Connection):
    """A connection that tells its disk of commits and checkpoints."""

    disk: PowerDisk

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        disk = getattr(self, "disk", None)
        if disk is None:
            return super().execute(sql, *args)
        disk.on_statement()
        if sql == "COMMIT":
            (synchronous,) = super().execute("PRAGMA synchronous").fetchone()
            before = disk._read("-wal")
            made = super().execute(sql, *args)
            if disk._read("-wal") != before:
                disk.committed(synchronous)
            disk.on_statement()
            return made
        if "wal_checkpoint" in sql:
            disk.checkpointing()
            made = super().execute(sql, *args)
            disk.checkpointed()
            disk.on_statement()
            return made
        return super().execute(sql, *args)


class WatchedModule:
    """Stands for ``sqlite3`` where a store opens its file: its connections are watched."""

    def __init__(self, disk: PowerDisk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(sqlite3, name)

    def connect(self, *args: Any, **options: Any) -> sqlite3.Connection:
        db = sqlite3.connect(*args, **options, factory=Watched)
        db.disk = self._disk
        return db
