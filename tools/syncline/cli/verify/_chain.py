"""Walking a stored log: density, hashes, and the replay on top."""

from __future__ import annotations

from ._codec import need
from ._log import Entry, read_entry
from ._replay import Replay
from ._report import SessionReport


class Chain:
    """The log of one session above ``floor``; ``step`` takes its rows in order.

    ``hash`` is the chain's hash so far (None: not known at the floor). A row whose hash is wrong
    is named and the walk goes on from the stored one, so that one fault is not reported of every
    row behind it. Past a hole or an unreadable entry nothing can be settled: ``replay`` becomes
    None, and what rests on it is not compared.
    """

    def __init__(
        self,
        report: SessionReport,
        table: str,
        floor: int,
        hash_: bytes | None,
        replay: Replay | None,
    ) -> None:
        self.seq = floor
        self.hash = hash_
        self.epoch = 1
        self.replay = replay
        self._report = report
        self._table = table

    def step(self, seq: int, hash_: bytes, events: int, data: bytes) -> Entry | None:
        """The entry of one row, if it can be read."""
        problems = self._report.problems
        name = f"{self._table} row {seq}"
        if seq != self.seq + 1:
            problems.add(f"{name} follows {self.seq}: the log is not dense")
            self.replay = None
        replay, self.replay = self.replay, None
        entry = None
        with problems.named(name):
            entry = read_entry(data)
            need(entry.seq == seq, f"holds the entry of seq {entry.seq}")
            need(entry.epoch >= self.epoch, f"falls back to epoch {entry.epoch}")
            self.epoch = entry.epoch
            if self.hash is not None and entry.hash(self.hash) != hash_:
                problems.add(f"{name} does not have the hash that its bytes give")
            if replay is not None:
                if entry.erased:
                    replay.skeletons.add(seq, data)
                replay.step(entry, events)
                self.replay = replay
        self.seq, self.hash = seq, hash_
        self._report.entries += 1
        return entry

    def ends_at(self, epoch: int, seq: int, hash_: bytes | None, *, all_named: bool) -> None:
        """The log must end where the session says; ``all_named``: every erased entry with it."""
        problems = self._report.problems
        if self.seq != seq:
            problems.add(f"the log ends at seq {self.seq}, the session says {seq}")
        elif self.hash is not None and hash_ != self.hash:
            problems.add("the session's hash is not that of its last entry")
        if self._report.entries and epoch != self.epoch:
            problems.add(f"the session's epoch is {epoch}, that of its last entry {self.epoch}")
        if self.replay is not None:
            self.replay.skeletons.check(0, all_named=all_named)
            self._report.concurrent = self.replay.concurrent
            self._report.lost = self.replay.smaller
