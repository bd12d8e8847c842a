"""Receipts: what every write returns, and the closed set of states that it can be in."""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING, Any

from syncline.sync import NotFound, Outcome, Refused, TimedOut, refusal, unpack

if TYPE_CHECKING:
    from ._core import Core

POLL_S = 0.1
"""How often a waiting receipt looks for what other processes did."""


class ReceiptState(Enum):
    """Where a write stands. It moves down this list and never back, except by a reported healing.

    ``QUEUED``: durable here, not sent. ``SENT``: may have reached the server. The next four are in
    the canonical log: ``APPLIED`` as written, ``MERGED`` with others' concurrent fields, ``WON`` or
    ``LOST`` when a value lost. ``REFUSED``: for good; see ``Session.refused``.
    """

    QUEUED = "queued"
    SENT = "sent"
    APPLIED = "applied"
    MERGED = "merged"
    WON = "won"
    LOST = "lost"
    REFUSED = "refused"

    @staticmethod
    def of(outcome: Outcome) -> ReceiptState:
        return ReceiptState[outcome.name]

    @property
    def pending(self) -> bool:
        return self in (ReceiptState.QUEUED, ReceiptState.SENT)


class Receipt:
    """The word for one write. ``id`` is its own for ever, through every renumbering."""

    def __init__(self, core: Core, id_: str, hint: tuple[str, int] | None = None) -> None:
        self._core = core
        self.id = id_
        self._hint = hint

    @property
    def state(self) -> ReceiptState:
        """Read from the file each time. Raises NotFound (3113) for a receipt of another replica."""
        state = self._core.receipt_state(bytes.fromhex(self.id), self._hint)
        if state is None:
            raise NotFound(f"this replica knows no write {self.id}")
        return state

    def wait(self, timeout: float | None = None) -> ReceiptState:
        """Block until the write is settled or refused; its state then.

        ``timeout`` is in seconds. Raises TimedOut (3114); the write stays in the outbox.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            state = self.state
            if not state.pending:
                return state
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimedOut(f"the write {self.id} is still {state.value}")
            with self._core.changed:
                self._core.changed.wait(POLL_S if left is None else min(POLL_S, left))

    @property
    def refusal(self) -> Refused | None:
        """Why it was refused; None when it was not."""
        with self._core.database.reading() as db:
            row: tuple[int, str, bytes] | None = db.execute(
                "SELECT code, reason, detail FROM syncline_refused WHERE salt=?",
                (bytes.fromhex(self.id),),
            ).fetchone()
        if row is None:
            return None
        detail: dict[str, Any] = unpack(row[2])
        return refusal(row[0], row[1], detail)

    def __repr__(self) -> str:
        return f"<Receipt {self.id}>"
