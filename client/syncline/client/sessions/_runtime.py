"""The runtime as an app makes one: with this machine's clock, ids and a default store."""

from __future__ import annotations

import threading

from syncline.sync.sessions import (
    CheckpointSource,
    EventSource,
    MemorySessionStore,
    SessionController,
    SessionRepository,
    SessionStore,
    warn_once,
)
from syncline.sync.sessions import SessionRuntime as PureSessionRuntime

from ._ids import new_session_id, wall_clock


def memory_store() -> MemorySessionStore:
    """Sessions in this process's memory; any thread may use it."""
    return MemorySessionStore(wall_clock, threading.RLock())


class SessionRuntime(PureSessionRuntime):
    """The runtime over ``store``; without one, in memory, with a warning that nothing lasts."""

    def __init__(
        self,
        store: SessionStore | SessionRepository | None = None,
        *,
        hooks: SessionController | None = None,
        checkpoints: CheckpointSource | None = None,
        log: EventSource | None = None,
    ) -> None:
        if store is None:
            warn_once()
            store = memory_store()
        super().__init__(
            store, new_id=new_session_id, hooks=hooks, checkpoints=checkpoints, log=log
        )
