"""The runtime: creates sessions, runs actions on them, and tells what happened.

    create   instantiate → before_create → before_save → store → after_save → after_create → Saved
    execute  load → after_load → Loaded → action → after_action → before_save → ActionExecuted
             → save → after_save → Saved

What fails is told with exactly one event and raised again. A session that cannot be loaded tells
``SessionLoadFailed``; one that cannot be stored, ``SessionSaveFailed``; a hook behind the save,
``PostCommitFailed``, since the session is stored then. An action or a hook before the save that
raises tells nothing and has stored nothing. Nothing is tried again in silence.

The runtime reads no clock and draws no random number: the store stamps, and ids come from
``new_id``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from .._errors import LocalError, NotFound, SessionConflict
from .._values import Value
from ._actions import SessionAction
from ._hooks import PassThrough, SessionController, Stage
from ._legacy import FlatNames
from ._resume import CheckpointSource, EventSource, is_recent, transient_state
from ._runtime_events import (
    PostCommitFailed,
    RuntimeEvent,
    SessionActionExecuted,
    SessionLoaded,
    SessionLoadFailed,
    SessionSaved,
    SessionSaveFailed,
)
from ._session import AgentDefinition, AgentSession, AgentState, SessionHeader
from ._store import ConflictResolver, SessionRepository, SessionStore

Listener = Callable[[RuntimeEvent], None]

_logger = logging.getLogger("syncline.sync.sessions")


class SessionRuntime(FlatNames):
    """Creates, reads and changes sessions in a store. See the module.

    ``store`` may be a repository. ``hooks`` is one controller or a stack. ``checkpoints`` and
    ``log`` are what ``resume`` and ``delete`` work with.
    """

    def __init__(
        self,
        store: SessionStore | SessionRepository,
        *,
        new_id: Callable[[], str],
        hooks: SessionController | None = None,
        checkpoints: CheckpointSource | None = None,
        log: EventSource | None = None,
    ) -> None:
        if not isinstance(store, SessionRepository):
            store = SessionRepository(store)
        self.repository = store
        self._new_id = new_id
        self._hooks = PassThrough() if hooks is None else hooks
        self._checkpoints = checkpoints
        self._log = log
        self._listeners: list[Listener] = []
        self._active: AgentSession | None = None

    @property
    def checkpoints(self) -> Any:
        """What was passed as ``checkpoints``. Raises LocalError when nothing was."""
        if self._checkpoints is None:
            raise LocalError("this runtime has no checkpoints: pass checkpoints=")
        return self._checkpoints

    @property
    def active_session(self) -> AgentSession | None:
        """The session last created or resumed here, as it was last seen; None when deleted."""
        return self._active

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Tell this listener of every event from now on; returns what ends it.

        It runs in the caller's thread. What it raises is logged and breaks nothing.
        """
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    # Reading: persists nothing, never changes the version.

    def list_sessions(self) -> list[SessionHeader]:
        """The headers of all sessions, by id."""
        return self.repository.list_headers()

    def get_session_info(self, session_id: str) -> SessionHeader:
        """A session's header. Raises SessionNotFound (3120)."""
        return self.get_session(session_id).header

    def get_session(self, session_id: str) -> AgentSession:
        """A session, as the hooks at ``after_load`` show it. Raises SessionNotFound (3120)."""
        return self._load(session_id)

    # Writing.

    def create(self, definition: AgentDefinition, seed: AgentState | None = None) -> AgentSession:
        """Make a session; it is stored when this returns.

        Raises SessionConflict (3121) when the id is taken.
        """
        session = AgentSession.fresh(self._new_id(), definition, seed)
        session = self._at(Stage.BEFORE_CREATE, session)
        session = self._named(self._at(Stage.BEFORE_SAVE, session))
        stored = self._store(self.repository.create, session)
        shown = self._behind(Stage.AFTER_SAVE, stored, stored)
        shown = self._behind(Stage.AFTER_CREATE, stored, shown)
        self._active = shown
        self._tell_saved(shown)
        return shown

    def execute(self, session_id: str, action: SessionAction) -> AgentSession:
        """Load, act, save. Raises SessionNotFound (3120) or SessionConflict (3121).

        After a conflict nothing of the action is stored: load again and decide.
        """
        loaded = self._load(session_id)
        session = self._at(Stage.AFTER_ACTION, action.execute_on(loaded))
        session = self._named(self._at(Stage.BEFORE_SAVE, session))
        self._tell(
            SessionActionExecuted(
                session.id,
                type(action).__name__,
                loaded.version,
                session.version,
                loaded.status,
                session.status,
            )
        )
        stored = self._store(self.repository.save, session)
        shown = self._behind(Stage.AFTER_SAVE, stored, stored)
        if self._active is not None and self._active.id == shown.id:
            self._active = replace(shown, transient=self._active.transient)
        self._tell_saved(shown)
        return shown

    def delete(self, session_id: str) -> None:
        """Remove a session and its checkpoints; one that is not there is no error.

        Rows of the audit ledger stay.
        """
        if self._checkpoints is not None:
            self._checkpoints.delete_all(session_id)
        self.repository.delete(session_id)
        if self._active is not None and self._active.id == session_id:
            self._active = None

    def resume(
        self,
        session_id: str,
        *,
        checkpoints: CheckpointSource | None = None,
        log: EventSource | None = None,
    ) -> AgentSession:
        """Rebuild a session after a restart, and make it the active one; see ``_resume``.

        ``checkpoints`` and ``log`` stand in for those of the runtime. A checkpoint that wins is
        stored, so that what is executed next goes on from it. Twice is as good as once.
        Raises SessionNotFound (3120).
        """
        source = checkpoints or self._checkpoints
        events = log or self._log
        if source is not None:
            self._overlay(session_id, source)
        session = self._load(session_id)
        if events is not None:
            session = replace(session, transient=transient_state(events.events(session_id)))
        self._active = session
        return session

    def _overlay(self, session_id: str, source: CheckpointSource) -> None:
        """Store the latest checkpoint over a row that is not fresher."""
        row = self.repository.store.load(session_id)
        snapshot = source.latest_snapshot(session_id)
        if row is None or snapshot is None or not is_recent(snapshot, row):
            return
        # Identity and lineage are the row's; what the checkpoint has is the rest.
        header = replace(row.header, status=snapshot.session.status)
        winner = replace(snapshot.session, header=header, transient=None)
        if winner == row:
            return
        try:
            stored = self.repository.save(winner)
        except SessionConflict:
            return  # Somebody has written meanwhile: their row is the fresher one.
        self._tell_saved(stored)

    def resolve_conflict(
        self, session_id: str, conflict_id: str, choice: str | Mapping[str, Value]
    ) -> AgentSession:
        """Choose between two values that met: ``"local"``, ``"remote"`` or fields to write.

        An ordinary write, which syncs. Raises NotFound (3113) for a conflict that is not open, and
        in a store that keeps none.
        """
        store = self.repository.store
        if not isinstance(store, ConflictResolver):
            raise NotFound(
                f"there is no conflict {conflict_id} here: this store resolves none, a replica does"
            )
        store.resolve_conflict(session_id, conflict_id, choice)
        return self._load(session_id)

    # The steps.

    def _at(self, stage: Stage, session: AgentSession) -> AgentSession:
        return self._hooks.on_stage(stage, session)

    def _named(self, session: AgentSession) -> AgentSession:
        return session.with_state(session.state.with_message_ids(self._new_id))

    def _load(self, session_id: str) -> AgentSession:
        try:
            session = self._at(Stage.AFTER_LOAD, self.repository.load(session_id))
        except Exception as error:
            self._tell(SessionLoadFailed(session_id, *_told(error)))
            raise
        self._tell(SessionLoaded(session.id, session.version, session.status))
        return session

    def _store(
        self, write: Callable[[AgentSession], AgentSession], session: AgentSession
    ) -> AgentSession:
        try:
            return write(session)
        except Exception as error:
            self._tell(SessionSaveFailed(session.id, *_told(error)))
            raise

    def _behind(self, stage: Stage, stored: AgentSession, shown: AgentSession) -> AgentSession:
        try:
            return self._at(stage, shown)
        except Exception as error:
            self._tell(PostCommitFailed(stored.id, stored.version, stage, *_told(error)))
            raise

    def _tell_saved(self, session: AgentSession) -> None:
        self._tell(SessionSaved(session.id, session.version, session.status))

    def _tell(self, event: RuntimeEvent) -> None:
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:
                _logger.exception("a listener of session %s failed", event.session_id)


def _told(error: Exception) -> tuple[str, str]:
    return str(error), type(error).__name__
