"""Where sessions are kept: the interface of a store, and the repository over one.

A store of your own implements ``SessionStore`` and passes the conformance suite
``syncline.testing.SessionStoreContract``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from .._errors import SessionConflict, SessionNotFound
from .._values import Value
from ._session import AgentSession, SessionHeader


class SessionStore(Protocol):
    """Keeps sessions, one write at a time, by optimistic versions.

    What goes in and comes out is the caller's own: nothing is shared with what is kept. A write
    that raises has stored nothing. ``updated_at`` is stamped by the store, larger with every write
    of a session; ``created_at`` where it is 0.
    """

    def create(self, session: AgentSession) -> AgentSession:
        """Store a new session as version 1; as it is stored.

        Raises SessionConflict (3121) when the id is taken, then when the version is not 0.
        """

    def save(self, session: AgentSession) -> AgentSession:
        """Store the next version of a session; as it is stored, one version on.

        Raises SessionNotFound (3120), and SessionConflict (3121) when the session's version is not
        the one that is stored.
        """

    def load(self, session_id: str) -> AgentSession | None:
        """The session as it is stored; None when there is none."""

    def exists(self, session_id: str) -> bool: ...

    def delete(self, session_id: str) -> None:
        """Remove a session; one that is not there is no error."""

    def list_headers(self) -> list[SessionHeader]:
        """The headers of all sessions, by id."""


@runtime_checkable
class ConflictResolver(Protocol):
    """A store that keeps what lost between devices, and lets people choose."""

    def resolve_conflict(
        self, session_id: str, conflict_id: str, choice: str | Mapping[str, Value]
    ) -> None:
        """Keep ``"local"`` or ``"remote"``, or write other fields. Raises NotFound (3113)."""


class SessionRepository:
    """A store, with errors in place of None."""

    def __init__(self, store: SessionStore) -> None:
        self.store = store

    def create(self, session: AgentSession) -> AgentSession:
        """Store a new session, for example a fork. Raises SessionConflict (3121)."""
        return self.store.create(session)

    def save(self, session: AgentSession) -> AgentSession:
        """Raises SessionNotFound (3120) or SessionConflict (3121)."""
        return self.store.save(session)

    def load(self, session_id: str) -> AgentSession:
        """Raises SessionNotFound (3120)."""
        session = self.store.load(session_id)
        if session is None:
            raise SessionNotFound(f"there is no session {session_id}", session=session_id)
        return session

    def exists(self, session_id: str) -> bool:
        return self.store.exists(session_id)

    def delete(self, session_id: str) -> None:
        self.store.delete(session_id)

    def list_headers(self) -> list[SessionHeader]:
        return self.store.list_headers()


def check_creatable(session: AgentSession, *, taken: bool) -> None:
    """For stores: raises SessionConflict (3121) unless ``session`` can be created."""
    if taken:
        raise SessionConflict(f"there is a session {session.id} already", session=session.id)
    if session.version != 0:
        raise SessionConflict(
            f"session {session.id} has version {session.version}, and a new one has version 0",
            session=session.id,
            version=session.version,
        )


def check_savable(session: AgentSession, stored_version: int | None) -> None:
    """For stores: raises unless ``session`` is the next of what is stored (None: nothing)."""
    if stored_version is None:
        raise SessionNotFound(f"there is no session {session.id}", session=session.id)
    if session.version != stored_version:
        raise SessionConflict(
            f"session {session.id} is stored as version {stored_version}, and this is a change of"
            f" version {session.version}",
            session=session.id,
            version=session.version,
            stored=stored_version,
        )
