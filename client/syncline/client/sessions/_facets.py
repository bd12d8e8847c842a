"""What a replica gives a runtime besides its rows: checkpoints and logs of its sessions."""

from __future__ import annotations

from syncline.sync import NotFound
from syncline.sync.sessions import Checkpoint, CheckpointSnapshot

from .._replica import Replica
from .._session import EventRow, Session
from ._checkpoints import At, Checkpoints, Rollback


class ReplicaCheckpoints:
    """The checkpoints of all sessions of a replica: ``runtime.checkpoints``.

    Each method takes the session's id first; see ``Checkpoints`` for what it does and raises.
    Raises NotFound (3113) for a session that this replica does not know.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def of(self, session_id: str) -> Checkpoints:
        """All that can be done with one session's past."""
        return Checkpoints(self._replica.session(session_id, create=False))

    def create(self, session_id: str, label: str = "") -> Checkpoint:
        return self.of(session_id).create(label)

    def list(self, session_id: str) -> list[Checkpoint]:
        return self.of(session_id).list()

    def latest(self, session_id: str) -> Checkpoint | None:
        return self.of(session_id).latest()

    def rollback(self, session_id: str, to: At, *, expected_version: int | None = None) -> Rollback:
        return self.of(session_id).rollback(to, expected_version=expected_version)

    def fork(self, session_id: str, at: At | None = None, *, label: str | None = None) -> Session:
        return self.of(session_id).fork(at, label=label)

    def latest_snapshot(self, session_id: str) -> CheckpointSnapshot | None:
        """None: here a checkpoint is never ahead of its row.

        Both are records of one file, and a checkpoint names a place of the log that the row is the
        fold of; so no crash keeps the one and loses the other.
        """
        return None

    def delete_all(self, session_id: str) -> None:
        """Drop the session's checkpoints, where it has any and is not deleted."""
        try:
            past = self.of(session_id)
        except NotFound:
            return
        if past.list():
            past.prune(keep=0)


class ReplicaLog:
    """The event logs of a replica's sessions, as ``resume`` reads them; offline too."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def events(self, session_id: str, /) -> list[EventRow]:
        """All events of the session, those in the outbox last; without what was rolled back."""
        session = self._replica.session(session_id, create=False)
        return list(Checkpoints(session).live_events())
