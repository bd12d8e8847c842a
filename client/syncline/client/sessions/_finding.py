"""Finding sessions in a replica, online or not."""

from __future__ import annotations

from syncline.sync import HEADER_COLLECTION, HEADER_ID, NotFound, Record
from syncline.sync.sessions import ListedSession, SessionPage, SessionQuery, list_page

from .._replica import Replica


def list_sessions(replica: Replica, query: SessionQuery | None = None) -> SessionPage:
    """The sessions of a replica that a query asks for, newest first; all without one."""
    return list_page(_listed(replica), query or SessionQuery())


def children(replica: Replica, session_id: str) -> tuple[ListedSession, ...]:
    """The subagents of a session, oldest first; forks are no children.

    Raises NotFound (3113) for a session that this replica does not know.
    """
    if session_id not in replica._core.session_ids():
        raise NotFound(f"there is no session {session_id} in this replica")
    found = (one for one in _listed(replica) if one.is_subagent and one.parent_id == session_id)
    return tuple(sorted(found, key=lambda one: one.key))


def _listed(replica: Replica) -> list[ListedSession]:
    with replica._core.database.reading() as db:
        rows = db.execute(
            "SELECT s.id, r.state FROM syncline_sessions s"
            " JOIN syncline_records r ON r.gen = s.gen AND r.collection = ? AND r.id = ?"
            " WHERE r.alive = 1",
            (HEADER_COLLECTION, HEADER_ID),
        ).fetchall()
    read = ((id_, Record.decode(state)) for id_, state in rows)
    return [ListedSession.read(id_, one.fields, one.life.updated_at) for id_, one in read]
