"""Who is told of what changed: callbacks after the commit, in the thread that committed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

logger = logging.getLogger("syncline.client")

Origin = Literal["local", "remote", "refusal", "conflict", "healing"]


@dataclass(frozen=True, slots=True)
class Notification:
    """What changed in one commit, per session, origin and collection.

    ``ids`` are the records that show anew (None: any may, after a bootstrap or a healing),
    ``collection`` is None for events and for what concerns the whole session. ``receipt_id`` names
    the local or refused write, ``conflict_ids`` the conflicts that were opened or closed.
    """

    session: str
    origin: Origin
    collection: str | None
    ids: tuple[str, ...] | None = ()
    events: int = 0
    receipt_id: str | None = None
    conflict_ids: tuple[str, ...] = ()


Callback = Callable[[Notification], None]


class Watchers:
    """The callbacks of one replica in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: dict[int, tuple[str, str | None, Callback]] = {}
        self._next = 0

    def add(self, session: str, collection: str | None, callback: Callback) -> Callable[[], None]:
        """Call back for this session (and collection); returns what ends it."""
        with self._lock:
            key, self._next = self._next, self._next + 1
            self._callbacks[key] = (session, collection, callback)

        def stop() -> None:
            with self._lock:
                self._callbacks.pop(key, None)

        return stop

    @property
    def any(self) -> bool:
        return bool(self._callbacks)

    def tell(self, notifications: list[Notification]) -> None:
        """Hand these out. A callback that raises is logged and breaks nothing.

        An exit or interrupt goes on to the app that wrote; in the connection's thread nobody would
        hear of it, and the connection would end.
        """
        if not notifications:
            return
        with self._lock:
            callbacks = list(self._callbacks.values())
        for notification in notifications:
            for session, collection, callback in callbacks:
                if session != notification.session:
                    continue
                if collection is not None and notification.collection not in (collection, None):
                    continue
                try:
                    callback(notification)
                except BaseException as error:
                    if notification.origin == "local" and not isinstance(error, Exception):
                        raise
                    logger.exception("a watcher of session %s failed", session)
