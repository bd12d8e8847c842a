"""Sessions in memory: for tests, for trying things out, and as the default that says so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from ._session import AgentSession, SessionHeader
from ._store import check_creatable, check_savable

_logger = logging.getLogger("syncline.sync.sessions")
_warned = False


def warn_once() -> None:
    """Say, once in this process, that nothing lasts."""
    global _warned
    if not _warned:
        _warned = True
        _logger.warning(
            "sessions are kept in memory: nothing lasts longer than this process; pass a store"
        )


class MemorySessionStore:
    """A store that lasts as long as its process. ``clock`` gives microseconds since the epoch.

    ``lock`` guards each write, where several threads use one store.
    """

    def __init__(
        self, clock: Callable[[], int], lock: AbstractContextManager[object] | None = None
    ) -> None:
        self._clock = clock
        self._lock = nullcontext() if lock is None else lock
        self._sessions: dict[str, AgentSession] = {}

    def create(self, session: AgentSession) -> AgentSession:
        with self._lock:
            check_creatable(session, taken=session.id in self._sessions)
            return self._put(session.stored(version=1, updated_at=self._clock()))

    def save(self, session: AgentSession) -> AgentSession:
        with self._lock:
            kept = self._sessions.get(session.id)
            check_savable(session, None if kept is None else kept.version)
            assert kept is not None
            at = max(self._clock(), kept.header.updated_at + 1)
            return self._put(session.stored(version=kept.version + 1, updated_at=at))

    def _put(self, session: AgentSession) -> AgentSession:
        self._sessions[session.id] = _copy(session)
        return _copy(session)

    def load(self, session_id: str) -> AgentSession | None:
        kept = self._sessions.get(session_id)
        return None if kept is None else _copy(kept)

    def exists(self, session_id: str) -> bool:
        return session_id in self._sessions

    def delete(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)

    def list_headers(self) -> list[SessionHeader]:
        return [session.header for _, session in sorted(self._sessions.items())]


def _copy(session: AgentSession) -> AgentSession:
    return AgentSession.from_dict(session.to_dict())
