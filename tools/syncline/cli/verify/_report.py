"""What a verification found, as plain data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from ._codec import MALFORMED

PROBLEMS_MAX = 100
"""Of one file or session; past it, one line says that there are more."""


class Problems(list[str]):
    """A bounded list of sentences."""

    def add(self, problem: str) -> None:
        if len(self) < PROBLEMS_MAX:
            self.append(problem)
        elif len(self) == PROBLEMS_MAX:
            self.append("more problems than are listed here")

    @contextmanager
    def named(self, row: str) -> Iterator[None]:
        """Turn whatever malformed bytes raise inside into a problem of that row."""
        try:
            yield
        except MALFORMED as error:
            self.add(f"{row} {error}")


@dataclass
class SessionReport:
    """One session. ``concurrent`` and ``lost`` are None where the history is not whole.

    ``alive`` are the records that live; ``concurrent`` the changes that had not seen all of the
    record they met, and ``lost`` those of them that came with the smaller stamp. ``sha256`` is the
    digest of the living records, ``pending`` the ops that wait in a replica's outbox.
    """

    id: str
    epoch: int
    seq: int
    head: bytes | None
    entries: int = 0
    alive: int = 0
    concurrent: int | None = None
    lost: int | None = None
    pending: int = 0
    sha256: str = ""
    problems: Problems = field(default_factory=Problems)


@dataclass
class Report:
    """A whole file: ``kind`` is "server", "replica" or "unknown"."""

    path: str
    kind: str = "unknown"
    sessions: list[SessionReport] = field(default_factory=list)
    problems: Problems = field(default_factory=Problems)

    @property
    def ok(self) -> bool:
        return not self.problems and not any(session.problems for session in self.sessions)

    def all_problems(self) -> list[str]:
        """Those of the file, then those of each session with its id in front."""
        apart = [
            f"session {session.id!a}: {problem}"
            for session in self.sessions
            for problem in session.problems
        ]
        return [*self.problems, *apart]


def state_digest(alive: dict[tuple[str, str], dict[str, Any]]) -> str:
    """SHA-256 of the living records as one JSON object in canonical form.

    Keys are record ids, or ``collection/id`` when there is more than one collection; bytes become
    ``{"$bytes": hex}``.
    """
    collections = {collection for collection, _ in alive}
    named = {
        (record_id if len(collections) == 1 else f"{collection}/{record_id}"): values
        for (collection, record_id), values in alive.items()
    }
    text = json.dumps(
        named, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_bytes_as_json
    )
    return sha256(text.encode()).hexdigest()


def _bytes_as_json(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    raise ValueError(f"holds a value of type {type(value).__name__}")
