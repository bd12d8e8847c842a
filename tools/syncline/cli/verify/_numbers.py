"""The numbers of a session's clients: each is an entry or a refusal, once, and dense."""

from __future__ import annotations

from dataclasses import dataclass, field

from ._codec import HASH_BYTES, NO_HASH, running_after
from ._log import Entry
from ._report import Problems

DigestByNumber = dict[int, bytes | None]
"""The op digest of each refused number; None for a void one."""


@dataclass
class Numbers:
    """``last`` and ``running`` per client, as the log and the refusals give them.

    ``running`` is None past a void number, whose op nobody here ever saw.
    """

    problems: Problems
    refused: dict[str, DigestByNumber]
    last: dict[str, int] = field(default_factory=dict)
    running: dict[str, bytes | None] = field(default_factory=dict)

    def entry(self, entry: Entry) -> None:
        """The next entry of the log."""
        name, who = f"log row {entry.seq}", f"{entry.client!a}"
        if entry.n <= self.last.get(entry.client, 0):
            self.problems.add(f"{name} repeats or reorders op {entry.n} of {who}")
            return
        if entry.n in self.refused.get(entry.client, {}):
            self.problems.add(f"{name} is op {entry.n} of {who}, which was refused")
        if not self._pass_refusals(entry.client, entry.n - 1):
            self.problems.add(f"{name} leaves out numbers of {who} below {entry.n}")
        self._advance(entry.client, entry.n, entry.digest)

    def _pass_refusals(self, client: str, through: int) -> bool:
        """Go on to ``through``; whether all numbers up to it were refused."""
        refused = self.refused.get(client, {})
        while self.last.get(client, 0) < through:
            n = self.last.get(client, 0) + 1
            if n not in refused:
                self.last[client], self.running[client] = through, None
                return False
            self._advance(client, n, refused[n])
        return True

    def _advance(self, client: str, n: int, digest: bytes | None) -> None:
        before = self.running.get(client, NO_HASH)
        self.running[client] = running_after(before, n, digest) if before and digest else None
        self.last[client] = n

    def ceiling(self, client: str, known: int) -> int:
        """The highest number of a stretch of refusals right above ``known``."""
        refused = self.refused.get(client, {})
        while known + 1 in refused:
            known += 1
        return known

    def ends_at(self, client: str, n: int, running: bytes) -> None:
        """The stored last number of a client must be where its numbers end."""
        name = f"clients row {client!a}"
        if not self._pass_refusals(client, n) or self.last.get(client, 0) != n:
            self.problems.add(f"{name} says {n}; the log and the refusals end elsewhere")
        elif len(running) != HASH_BYTES or self.running.get(client) not in (None, running):
            self.problems.add(f"{name} does not have the running hash that its ops give")
        for above in sorted(k for k in self.refused.get(client, {}) if k > n):
            self.problems.add(f"refusals row {client!a} {above} is above the client's last number")
