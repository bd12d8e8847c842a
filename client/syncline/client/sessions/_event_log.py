"""The event log of one session: append, read, follow, and everything that is a fold of it.

    log = EventLog(session)
    log.append(UserMessage(message_id="m1", text="hello"))
    with log.stream() as stream:
        for item in stream:
            print(item.seq, item.type)

It works offline: what waits in the outbox is part of the log as this replica shows it, without a
seq until the server has given it one.
"""

from __future__ import annotations

from collections.abc import Mapping

from syncline.sync import InvalidValue, Value
from syncline.sync.sessions import (
    Conversation,
    Logged,
    LogItem,
    OpenItems,
    Prompt,
    Trace,
    Transcript,
    TurnState,
    Usage,
    check_loggable,
    trace_of,
)

from .._receipt import Receipt
from .._rows import pending_ops, session_row
from .._session import Session
from ._checkpoints import Checkpoints
from ._log_fold import LogFold
from ._log_items import entries, logged, waiting
from ._stream import POLL_S, EventStream


class EventLog:
    """The log of ``session``; any number of them, in any thread and process.

    The state is the log: transcript, usage, what is open, the prompt and the turns are folds of it.
    They are kept between calls, so reading after each append costs what was appended, however long
    the log is. Each call returns a copy, which stays as it is.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._core = session._core
        self._fold = LogFold(self._core, session.id, Conversation)

    def __repr__(self) -> str:
        return f"<EventLog of {self.session.id}>"

    # Writing.

    def append(self, *events: Logged) -> Receipt:
        """Append these events as one op: all of them or none, durable when this returns.

        Raises InvalidValue (3019) for none at all and for one that is live only, TooLarge (3011).
        """
        if not events:
            raise InvalidValue("there is no event to append", path="events")
        with self.session.transaction() as receipt:
            for event in events:
                self._append(event.type, event.payload())
        return receipt

    def append_raw(self, type: str, payload: Mapping[str, Value]) -> Receipt:
        """Append an event by its stored form: a type of the app's own, or a known one.

        Raises InvalidValue (3019) when a known type does not fit, and for a signal.
        """
        with self.session.transaction() as receipt:
            self._append(type, payload)
        return receipt

    def _append(self, type: str, payload: Mapping[str, Value]) -> None:
        check_loggable(type, payload)
        self.session.append(type, payload)

    # Reading.

    def events(self, after: int = 0, limit: int | None = None) -> list[LogItem]:
        """The events with ``seq > after`` in order, then those that wait in the outbox.

        Unknown types are among them. ``limit`` is about how many: an op is never split, so that
        the last ``seq`` is a safe ``after`` for the next page. Waiting ones come only when nothing
        was left off.
        """
        found: list[LogItem] = []
        with self._core.database.reading() as db:
            session = session_row(db, self.session.id)
            for entry in entries(db, session, after):
                if limit is not None and len(found) >= limit:
                    return found
                found.extend(logged(entry))
            client = self._core.client()
            for op in pending_ops(db, session.key):
                if limit is not None and len(found) >= limit:
                    break
                found.extend(waiting(op, client))
        return found

    def stream(self, after: int = 0, *, poll_s: float = POLL_S) -> EventStream:
        """Replay what is behind ``after``, then go on live: no gap and no repeat between the two.

        What other processes append to this file is looked for every ``poll_s`` seconds.
        """
        return EventStream(self._core, self.session.id, after, poll_s=poll_s)

    # Folds.

    def conversation(self) -> Conversation:
        """All folds at once, of one moment."""
        with self._core.database.lock:
            return self._fold.refresh().copy()

    def transcript(self) -> Transcript:
        """The conversation as people read it, without what was rolled back."""
        with self._core.database.lock:
            return self._fold.refresh().transcript.copy()

    def usage(self) -> Usage:
        """Tokens and cost; what was rolled back was spent all the same."""
        with self._core.database.lock:
            return self._fold.refresh().usage.copy()

    def prompt(self) -> Prompt:
        """What a model would be shown now."""
        with self._core.database.lock:
            return self._fold.refresh().prompt.copy()

    def turns(self) -> TurnState:
        """Who runs the session's turns, and how they stand."""
        with self._core.database.lock:
            return self._fold.refresh().turns.copy()

    def open_items(self) -> OpenItems:
        """What is under way or waits."""
        with self._core.database.lock:
            return self._fold.refresh().open_items

    def trace(self) -> Trace:
        """The tree of turns, requests, tool calls and subagents with their times.

        Reads the whole log each time.
        """
        with self._core.database.reading():
            live = {
                (event.seq, event.client, event.at, event.index)
                for event in Checkpoints(self.session).live_events()
            }
            items = self.events()
        return trace_of(
            item for item in items if (item.seq, item.client, item.at, item.index) in live
        )
