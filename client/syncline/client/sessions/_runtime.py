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

from ._facets import ReplicaCheckpoints, ReplicaLog
from ._ids import new_session_id, wall_clock
from ._replica_store import ReplicaSessionStore


def memory_store() -> MemorySessionStore:
    """Sessions in this process's memory; any thread may use it."""
    return MemorySessionStore(wall_clock, threading.RLock())


class SessionRuntime(PureSessionRuntime):
    """The runtime over ``store``; without one, in memory, with a warning that nothing lasts.

    Over a ``ReplicaSessionStore``, checkpoints and log are those of its replica, unless others are
    given.
    """

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
        kept = store.store if isinstance(store, SessionRepository) else store
        if isinstance(kept, ReplicaSessionStore):
            checkpoints = checkpoints or ReplicaCheckpoints(kept.replica)
            log = log or ReplicaLog(kept.replica)
        super().__init__(
            store, new_id=new_session_id, hooks=hooks, checkpoints=checkpoints, log=log
        )
