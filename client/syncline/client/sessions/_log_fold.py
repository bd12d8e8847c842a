"""A fold of one session's log, kept up with the replica: the log, and on top what waits to be sent.

``LogFold`` reads each entry once: own ops that move from the outbox into the log, in their order,
change nothing that was folded already. Whatever else happens (entries of others before own pending
ops, a healing, a refusal) is folded again from the last place in the canonical log, or from its
beginning. So is the log when it was rolled back: what a rollback took out of the conversation is
passed over.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from syncline.sync.sessions import ROLLBACK, LogItem, PlacedEvent, live_events

from .._core import Core
from .._rows import SessionState, pending_ops, session_row
from ._log_items import entries, logged, waiting


class Fold(Protocol):
    """What is folded: one event after the other, in the order of the log."""

    def add(self, logged: LogItem, /) -> None:
        """Fold one event of the conversation."""

    def pass_over(self, logged: LogItem, /) -> None:
        """Take notice of one that a rollback took out."""


class CopiedFold(Fold, Protocol):
    def copy(self: F) -> F:
        """An equal one that goes its own way."""


F = TypeVar("F", bound="CopiedFold")


@dataclass(frozen=True, slots=True)
class _Point:
    """A place in the canonical log, and what else decides whether the folds still hold."""

    client: str
    gen: int
    seq: int
    hash: bytes | None
    refused: int


class LogFold(Generic[F]):
    """The folded log of one session; ``new`` makes an empty fold. Not for several threads at once.

    ``seen`` is the fold as of the last ``refresh``: look at it, and do not change it.
    """

    def __init__(self, core: Core, session_id: str, new: Callable[[], F]) -> None:
        self.core = core
        self.session_id = session_id
        self._new = new
        self._forget()

    def _forget(self) -> None:
        self._base = self._new()
        self.seen = self._new()
        self._seq, self._n = 0, 0
        self._ahead: deque[bytes] = deque()
        self._point: _Point | None = None

    def refresh(self) -> F:
        """Fold what is new; the fold as this replica shows it."""
        with self.core.database.reading() as db:
            self._refresh(db)
        return self.seen

    def _refresh(self, db: sqlite3.Connection) -> None:
        session = session_row(db, self.session_id)
        point = self._standing(db, session)
        known = self._point
        if known == point:
            self._take_pending(db, session, point)
            return
        if known is not None and not self._continues(db, session, known, point):
            self._forget()
        in_step = True
        for entry in entries(db, session, self._seq):
            own = bool(self._ahead) and self._ahead[0] == entry.salt
            if own:
                self._ahead.popleft()
            for item in logged(entry):
                if item.type == ROLLBACK:
                    return self._fold_again(db, session, point)
                self._base.add(item)
                in_step = in_step and own
        self._seq, self._point = session.seq, point
        if not in_step:
            self._begin_again()
        self._take_pending(db, session, point)

    def _begin_again(self) -> None:
        self.seen, self._n = self._base.copy(), 0
        self._ahead.clear()

    def _standing(self, db: sqlite3.Connection, session: SessionState) -> _Point:
        (client,) = db.execute("SELECT value FROM syncline_meta WHERE key='client'").fetchone()
        (refused,) = db.execute(
            "SELECT count(*) FROM syncline_refused WHERE session=?", (session.key,)
        ).fetchone()
        return _Point(client, session.gen, session.seq, session.hash, refused)

    def _continues(
        self, db: sqlite3.Connection, session: SessionState, known: _Point, point: _Point
    ) -> bool:
        """Whether the log that was folded is the beginning of the one that is there now."""
        if (known.client, known.gen, known.refused) != (point.client, point.gen, point.refused):
            return False
        if point.seq < known.seq or known.seq == 0:
            return known.seq == 0
        row = db.execute(
            "SELECT hash FROM syncline_entries WHERE session=? AND seq=?",
            (session.key, known.seq),
        ).fetchone()
        return row is not None and row[0] == known.hash

    def _take_pending(self, db: sqlite3.Connection, session: SessionState, point: _Point) -> None:
        if self._ahead and not _waits(db, session, self._n, self._ahead[-1]):
            # It was folded inside a transaction that then stored nothing.
            self._begin_again()
        for op in pending_ops(db, session.key, self._n):
            self._n = op.n
            if op.salt is None:
                continue
            self._ahead.append(op.salt)
            for item in waiting(op, point.client):
                if item.type == ROLLBACK:
                    return self._fold_again(db, session, point)
                self.seen.add(item)

    def _fold_again(self, db: sqlite3.Connection, session: SessionState, point: _Point) -> None:
        """Fold the whole log without what its rollbacks took out, and what waits on top."""
        there = [item for entry in entries(db, session, 0) for item in logged(entry)]
        ops = [op for op in pending_ops(db, session.key) if op.salt is not None]
        ahead = [item for op in ops for item in waiting(op, point.client)]
        self._base = self._folded(there)
        self.seen = self._folded(there + ahead)
        self._seq, self._point = session.seq, point
        self._n = max((op.n for op in ops), default=0)
        self._ahead = deque(op.salt for op in ops if op.salt is not None)

    def _folded(self, items: Sequence[LogItem]) -> F:
        fold = self._new()
        placed = [PlacedEvent(item.seq, item.client, item.type, item.payload) for item in items]
        live = set(live_events(placed))
        for place, item in enumerate(items):
            (fold.add if place in live else fold.pass_over)(item)
        return fold


def _waits(db: sqlite3.Connection, session: SessionState, n: int, salt: bytes) -> bool:
    row = db.execute(
        "SELECT salt FROM syncline_outbox WHERE session=? AND n=?", (session.key, n)
    ).fetchone()
    return row is not None and row[0] == salt
