"""Finding sessions: by agent, status, parent and metadata, in pages (REQ 3.2, 3.11).

A page is cut by key, not by count: what is made or deleted meanwhile moves no other session from
one page to the next, and none is told of twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .._errors import InvalidValue
from .._values import Value
from ._filter import contains
from ._layout import METADATA, read_header
from ._session import SessionStatus

LIMIT = 50
LIMIT_MAX = 1000


@dataclass(frozen=True, slots=True)
class ListedSession:
    """What a list says of a session. Times are microseconds since the Unix epoch.

    ``parent_id`` is the session that it was forked from, or whose subagent it is.
    """

    id: str
    agent: str
    label: str
    status: SessionStatus
    parent_id: str | None
    is_subagent: bool
    created_at: int
    updated_at: int
    metadata: Mapping[str, Value]

    @staticmethod
    def read(id_: str, header: Mapping[str, Value], updated_at: int) -> ListedSession:
        """The session of its header's fields; never fails."""
        read = read_header(id_, header, version=0, updated_at=updated_at)
        return ListedSession(
            id_,
            read.agent,
            read.label,
            read.status,
            read.parent_id,
            isinstance(header.get("subagent"), dict),
            read.created_at,
            updated_at,
            {
                name.removeprefix(METADATA): value
                for name, value in header.items()
                if name.startswith(METADATA) and name != METADATA
            },
        )

    @property
    def key(self) -> tuple[int, str]:
        """By what lists are in order, the newest first."""
        return self.created_at, self.id


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """Which sessions: all that are given must hold; ``metadata`` is contained (see ``contains``).

    ``limit`` is 1 to 1000 a page; ``cursor`` is that of the page before. Deleted sessions are
    listed only when their status is asked for. Raises InvalidValue (3019).
    """

    agent: str | None = None
    status: SessionStatus | None = None
    parent: str | None = None
    metadata: Mapping[str, Value] = field(default_factory=dict)
    limit: int = LIMIT
    cursor: str | None = None

    def __post_init__(self) -> None:
        if type(self.limit) is not int or not 1 <= self.limit <= LIMIT_MAX:
            raise InvalidValue(
                f"a page has 1 to {LIMIT_MAX} sessions, not {self.limit!r}", path="limit"
            )
        if self.status is not None:
            object.__setattr__(self, "status", SessionStatus(self.status))
        if self.cursor is not None:
            _key_of(self.cursor)

    def takes(self, session: ListedSession) -> bool:
        """Whether it is one that is asked for."""
        return (
            (self.agent is None or session.agent == self.agent)
            and (self.parent is None or session.parent_id == self.parent)
            and contains(dict(session.metadata), dict(self.metadata))
            and (
                session.status is not SessionStatus.DELETED
                if self.status is None
                else session.status is self.status
            )
        )


@dataclass(frozen=True, slots=True)
class SessionPage:
    """A page, newest first. ``cursor`` asks for the next one; None when this is the last."""

    sessions: tuple[ListedSession, ...]
    cursor: str | None


def list_page(sessions: Iterable[ListedSession], query: SessionQuery) -> SessionPage:
    """The page that a query asks for."""
    before = None if query.cursor is None else _key_of(query.cursor)
    found = sorted(
        (one for one in sessions if (before is None or one.key < before) and query.takes(one)),
        key=lambda one: one.key,
        reverse=True,
    )
    page = tuple(found[: query.limit])
    return SessionPage(page, _cursor(page[-1]) if len(found) > query.limit else None)


def _cursor(session: ListedSession) -> str:
    return f"{session.created_at}.{session.id}"


def _key_of(cursor: str) -> tuple[int, str]:
    at, dot, id_ = cursor.partition(".")
    if not (dot and id_ and at.isascii() and at.isdecimal()):
        raise InvalidValue(
            f"{cursor!r} is no cursor: give the one that came with the page before", path="cursor"
        )
    return int(at), id_
