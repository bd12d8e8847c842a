"""An event at its place in a session's log, as readers and folds get it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .._values import Value
from ._events import LogEvent, read_event


@dataclass(frozen=True, slots=True)
class LogItem:
    """One event of the log: ``type`` and ``payload`` as stored, ``event`` as read.

    ``seq`` is None while it waits in the outbox; ``index`` counts within its op. ``at`` is its
    ``updatedAt`` (microseconds since the Unix epoch), ``client`` who appended it. ``receipt_id``
    names its op for ever, before and after it has a seq.
    """

    seq: int | None
    index: int
    type: str
    payload: Mapping[str, Value]
    event: LogEvent
    at: int
    client: str
    receipt_id: str

    @property
    def key(self) -> tuple[str, int]:
        """What tells the event from all others, wherever it stands."""
        return self.receipt_id, self.index

    @staticmethod
    def read(
        seq: int | None,
        index: int,
        type: str,
        payload: Mapping[str, Value],
        at: int,
        client: str,
        receipt_id: str,
    ) -> LogItem:
        """The item of what is stored; never fails (see ``read_event``)."""
        event = read_event(type, payload)
        return LogItem(seq, index, type, payload, event, at, client, receipt_id)
