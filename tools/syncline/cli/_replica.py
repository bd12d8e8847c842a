"""Opening a replica and choosing a session in it, for the commands that write or sync."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from syncline.sync import NotFound

if TYPE_CHECKING:
    from syncline.client import Replica, Session

_F = TypeVar("_F", bound=Callable[..., Any])


def session_option(command: _F) -> _F:
    """``--session`` for a command; it gets ``session_id``."""
    return click.option(
        "--session",
        "session_id",
        metavar="ID",
        help="The session; needed when the replica has several.",
    )(command)


def open_replica(path: str) -> Replica:
    """An existing replica. Raises NotFound (3113) without the file."""
    # The client brings websockets and pydantic along, which the other commands do without.
    from syncline.client import Replica

    if not Path(path).exists():
        raise NotFound(f"there is no replica {path}: make it with 'syncline init'", path=path)
    return Replica(path, create=False)


def choose_session(replica: Replica, session_id: str | None, *, create: bool = False) -> Session:
    """The session named, or the only one. With ``create``, one that is missing is made.

    One that is named may be known to others only; so nothing is written of it but what is put.
    """
    if session_id is not None:
        return replica.session(session_id, create=create)
    known = replica.sessions()
    if len(known) > 1:
        names = ", ".join(session.id for session in known)
        raise click.UsageError(f"The replica has several sessions; name one: --session {names}")
    if known:
        return known[0]
    if create:
        return replica.create_session()
    raise NotFound("the replica has no session yet: put a record, or sync it")
