"""What a runtime tells its listeners: notices within a process, not events of the log."""

from __future__ import annotations

from dataclasses import dataclass

from ._hooks import Stage
from ._session import SessionStatus


@dataclass(frozen=True, slots=True)
class SessionLoaded:
    """A session was read."""

    session_id: str
    version: int
    status: SessionStatus


@dataclass(frozen=True, slots=True)
class SessionActionExecuted:
    """An action and the hooks behind it are done; nothing is stored yet."""

    session_id: str
    action: str
    before_version: int
    after_version: int
    before_status: SessionStatus
    after_status: SessionStatus


@dataclass(frozen=True, slots=True)
class SessionSaved:
    """A session is stored, and the hooks behind the save are done."""

    session_id: str
    version: int
    status: SessionStatus


@dataclass(frozen=True, slots=True)
class SessionLoadFailed:
    """A session could not be read. ``error_type`` is the name of the exception's class."""

    session_id: str
    error: str
    error_type: str


@dataclass(frozen=True, slots=True)
class SessionSaveFailed:
    """A session could not be stored: what was stored before stands."""

    session_id: str
    error: str
    error_type: str


@dataclass(frozen=True, slots=True)
class PostCommitFailed:
    """A hook failed behind the save: the session is stored, as ``version``."""

    session_id: str
    version: int
    stage: Stage
    error: str
    error_type: str


RuntimeEvent = (
    SessionLoaded
    | SessionActionExecuted
    | SessionSaved
    | SessionLoadFailed
    | SessionSaveFailed
    | PostCommitFailed
)
