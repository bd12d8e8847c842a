"""Checkpoints of a session, and what can be done with its past: read, compare, roll back, fork.

A checkpoint is a record of the reserved collection ``$checkpoint``, so it syncs like any other; it
names a place of the log, and the state there is derived from the log when it is asked for. Where a
replica does not hold the log that far back, it says so (see ``_history``).

A place is named by a seq, a checkpoint (or its id), or the id of a rollback, which stands for what
showed just before that rollback.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import uuid_utils

from syncline.sync import (
    CHECKPOINT_COLLECTION,
    HEADER_COLLECTION,
    HEADER_ID,
    Entry,
    Event,
    InvalidValue,
    NotFound,
    Record,
    SessionConflict,
    Stamp,
    TooLarge,
    Value,
)
from syncline.sync.sessions import (
    CHECKPOINTED,
    ROLLBACK,
    Checkpoint,
    Difference,
    Fields,
    Key,
    PlacedEvent,
    check_label,
    difference,
    live_events,
    marks_place,
    read_checkpoint,
    rollback_difference,
    visible,
)

from .._receipt import Receipt
from .._rows import SessionState, pending_ops, runtime_version, session_row
from .._session import EventRow, Session
from .._writing import OpWriter
from ._fork import Said, origin_of, write_session
from ._history import Place, StateAt, place_at, records_at, state_at

At = int | str | Checkpoint
"""A place: a seq, a checkpoint, its id, or the id of a rollback (what showed just before it)."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """A rollback that was written: ``id`` names it, also to undo it; ``wrote`` is its effect."""

    id: str
    receipt: Receipt
    seq: int
    wrote: Difference


class Checkpoints:
    """The past of one session of a replica."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._core = session._core
        self._id = session.id

    # Checkpoints.

    def create(self, label: str = "") -> Checkpoint:
        """Give what shows now a name: one durable op, offline too.

        Raises InvalidValue (3019) for a label that is no text of at most 1,024 bytes, and
        SessionDeleted (3014).
        """
        check_label(label)
        id_ = _new_id()
        with self._core.op(self._id) as op, self._core.database.reading() as db:
            session = session_row(db, self._id)
            by = Stamp(op.now, op.client, op.head.n)
            vector = dict(session.vector)
            if op.head.n > 1:
                vector[op.client] = op.head.n - 1
            made = Checkpoint(
                id_, label, session.epoch, session.seq, session.hash, vector, op.now, by
            )
            op.put(CHECKPOINT_COLLECTION, id_, made.fields(), None)
            payload: dict[str, Value] = {"checkpointId": id_, "label": label, "seq": session.seq}
            op.append(CHECKPOINTED, payload, None)
        return made

    def list(self) -> list[Checkpoint]:
        """All checkpoints, oldest first. A session that is deleted has none."""
        if self._session.deleted:
            return []
        with self._core.database.reading() as db:
            rows = db.execute(
                "SELECT id, state FROM syncline_records WHERE gen=? AND collection=? AND alive=1",
                (session_row(db, self._id).gen, CHECKPOINT_COLLECTION),
            ).fetchall()
        read = (read_checkpoint(id_, Record.decode(state)) for id_, state in rows)
        return sorted((one for one in read if one is not None), key=_age)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint; None when there is none."""
        return next(reversed(self.list()), None)

    def get(self, id: str) -> Checkpoint:
        """The checkpoint with this id. Raises NotFound (3113)."""
        found = next((one for one in self.list() if one.id == id), None)
        if found is None:
            raise NotFound(f"session {self._id} has no checkpoint {id}", checkpoint=id)
        return found

    def prune(
        self, *, keep: int | None = None, before: int | None = None, ids: Collection[str] = ()
    ) -> tuple[str, ...]:
        """Drop checkpoints, in one op; the ids of those that went.

        All but the newest ``keep``, those made ``before`` a time (microseconds since the Unix
        epoch), and those named. The log keeps what they stood for: a state can still be read by
        its seq. Raises NotFound (3113) for an id that is none.
        """
        if keep is not None and keep < 0:
            raise InvalidValue(f"keep counts checkpoints, it is not {keep}", path="keep")
        with self._core.op(self._id) as op:
            there = self.list()
            old = {self.get(id_).id for id_ in ids}
            if keep is not None:
                old |= {one.id for one in there[: max(0, len(there) - keep)]}
            if before is not None:
                old |= {one.id for one in there if one.created_at < before}
            for id_ in sorted(old):
                op.delete(CHECKPOINT_COLLECTION, id_, None)
        return tuple(one.id for one in there if one.id in old)

    # Reading the past.

    def state_at(self, at: At | None = None) -> StateAt:
        """What the session showed at a place; None: what it shows now.

        Raises HistoryMissing (3115) when this replica does not hold the log from its beginning,
        NotFound (3113) for what is no place, and Diverged (3015) for one that a healing took away.
        """
        with self._core.database.reading() as db:
            session = session_row(db, self._id)
            if at is None:
                shown = visible(_shown(db, session))
                return StateAt(session.epoch, session.seq, session.hash, shown)
            return state_at(db, session, self._core.client(), self._place(db, session, at))

    def diff(self, a: At, b: At | None = None) -> Difference:
        """What leads from one place to another (None: to what shows now), by record and field.

        Checkpoints themselves are left out. Raises what ``state_at`` does.
        """
        with self._core.database.reading():
            before, after = self.state_at(a).records, self.state_at(b).records
        return difference(_without_checkpoints(before), _without_checkpoints(after))

    # Changing the present.

    def preview(self, to: At, *, collections: Collection[str] | None = None) -> Difference:
        """What a rollback would write now; raises what ``state_at`` does."""
        with self._core.database.reading():
            now, then = self.state_at().records, self.state_at(to).records
        return rollback_difference(now, then, collections)

    def rollback(
        self,
        to: At,
        *,
        collections: Collection[str] | None = None,
        expected_seq: int | None = None,
        expected_version: int | None = None,
    ) -> Rollback:
        """Bring back what showed at a place: one new op that writes the difference.

        It syncs like any op, settles against what others wrote meanwhile, and can be undone:
        ``rollback(rollback.id)``. Events, conflicts and checkpoints stay, and so do the fields of
        the header that give rights. ``collections`` limits it to these (``$session``: the header).
        ``expected_seq`` makes it fail when the log has moved on from there, ``expected_version``
        when the session has in the store's count (see ``ReplicaSessionStore``). Versions only rise.

        Raises what ``state_at`` does, SessionConflict (3121), SessionDeleted (3014), and TooLarge
        (3011) when the difference is more than one op can hold; nothing is stored then.
        """
        id_ = _new_id()
        try:
            with self._core.op(self._id) as op, self._core.database.reading() as db:
                session = session_row(db, self._id)
                _check(self._id, "seq", session.seq, expected_seq)
                _check(self._id, "version", runtime_version(db, session.key), expected_version)
                place = self._place(db, session, to)
                then = visible(records_at(db, session, op.client, place))
                now = {**_shown(db, session), **op.drafted}
                wrote = rollback_difference(visible(now), then, collections)
                _write(op, wrote)
                op.append(ROLLBACK, _payload(id_, place, session), None)
                receipt = self._session._receipt(op)
        except TooLarge as error:
            raise TooLarge(
                f"the rollback of session {self._id} does not fit into one op: {error.reason}."
                " Roll back some collections at a time, or fork the session from there",
                **error.detail,
            ) from error
        return Rollback(id_, receipt, place.seq, wrote)

    def rollbacks(self) -> tuple[tuple[int | None, str, dict[str, Value]], ...]:
        """The rollbacks of this session: ``(seq, id, payload of the event)``, oldest first."""
        return tuple(
            (event.seq, id_, event.payload)
            for event in self._session.events()
            if event.type == ROLLBACK and isinstance(id_ := event.payload.get("rollbackId"), str)
        )

    def live_events(self, at: At | None = None) -> tuple[EventRow, ...]:
        """The events that make up the conversation (at a place), after all rollbacks."""
        with self._core.database.reading() as db:
            events = self._session.events()
            placed = [PlacedEvent(e.seq, e.client, e.type, e.payload) for e in events]
            if at is None:
                return tuple(events[place] for place in live_events(placed))
            place = self._place(db, session_row(db, self._id), at)
        wanted = place.checkpoint or place.rollback
        anchor = None
        if wanted is not None:
            anchor = next((i for i, one in enumerate(placed) if marks_place(one, wanted)), None)
        return tuple(events[i] for i in live_events(placed, place.seq, anchor))

    def fork(
        self, at: At | None = None, *, label: str | None = None, events: bool = True
    ) -> Session:
        """A new session that begins with what showed at a place (None: with what shows now).

        Works offline; this one is not touched. Values and events keep their ``updatedAt`` and take
        dots of the new session. Rights are not inherited. Raises what ``state_at`` does, and
        TooLarge (3011) for a record that no op can hold; nothing is stored then.
        """
        with self._core.batch(), self._core.database.reading() as db:
            session = session_row(db, self._id)
            place, records = self._records(db, session, at)
            inherited = self.live_events(at) if events else ()
            said = [Said(event.type, event.payload, event.at) for event in inherited]
            own: dict[str, Value] = {
                "parent": self._id,
                "forked_from": origin_of(self._id, place),
            }
            if label is not None:
                own["label"] = label
            return write_session(self._core, _new_id(), records, said, own)

    def records_at(self, at: At | None = None) -> tuple[Place, dict[Key, Record]]:
        """The records at a place with their stamps, dead ones too, and the place itself.

        Raises what ``state_at`` does.
        """
        with self._core.database.reading() as db:
            return self._records(db, session_row(db, self._id), at)

    def _records(
        self, db: sqlite3.Connection, session: SessionState, at: At | None
    ) -> tuple[Place, dict[Key, Record]]:
        if at is None:
            return Place(session.epoch, session.seq, session.hash), _shown(db, session)
        place = self._place(db, session, at)
        return place, records_at(db, session, self._core.client(), place)

    # Places.

    def _place(self, db: sqlite3.Connection, session: SessionState, at: At) -> Place:
        if isinstance(at, Checkpoint):
            return Place.of(at)
        if isinstance(at, str):
            found = next((one for one in self.list() if one.id == at), None)
            return Place.of(found) if found is not None else self._before_rollback(db, session, at)
        if type(at) is not int:
            raise InvalidValue(f"a place is a seq, a checkpoint or an id, not {at!r}", path="at")
        return place_at(db, session, at)

    def _before_rollback(self, db: sqlite3.Connection, session: SessionState, id_: str) -> Place:
        """The place just before the rollback with this id."""
        rows = db.execute(
            "SELECT entry FROM syncline_entries WHERE session=? AND seq<=? AND events>0"
            " AND instr(entry, ?) > 0 ORDER BY seq",
            (session.key, session.seq, id_.encode()),
        )
        for (data,) in rows:
            for accepted in Entry.decode(data).read():
                if isinstance(accepted.change, Event):
                    place = _place_of(accepted.change, accepted.stamp, id_)
                    if place is not None:
                        return place
        client = self._core.client()
        for op in pending_ops(db, session.key):
            for change, at in zip(op.changes, op.stamps, strict=True):
                if isinstance(change, Event):
                    place = _place_of(change, Stamp(at, client, op.n), id_)
                    if place is not None:
                        return place
        raise NotFound(f"session {self._id} has no checkpoint and no rollback {id_}", id=id_)


def _shown(db: sqlite3.Connection, session: SessionState) -> dict[Key, Record]:
    rows = db.execute(
        "SELECT collection, id, state FROM syncline_records WHERE gen=? AND alive=1",
        (session.gen,),
    )
    return {(collection, id_): Record.decode(state) for collection, id_, state in rows}


def _check(session: str, what: str, is_: int, expected: int | None) -> None:
    if expected is not None and is_ != expected:
        raise SessionConflict(
            f"session {session} is at {what} {is_}, not at {expected}", session=session, at=is_
        )


def _age(checkpoint: Checkpoint) -> tuple[int, Stamp, str]:
    return checkpoint.created_at, checkpoint.by, checkpoint.id


def _new_id() -> str:
    return str(uuid_utils.uuid7())


def _without_checkpoints(records: Mapping[Key, Fields]) -> dict[Key, Fields]:
    return {key: fields for key, fields in records.items() if key[0] != CHECKPOINT_COLLECTION}


def _write(op: OpWriter, wrote: Difference) -> None:
    """The difference as changes, which say no more than they must: others' fields stay."""
    for one in wrote.records:
        if one.after is None:
            op.delete(one.collection, one.id, None)
        elif one.key == (HEADER_COLLECTION, HEADER_ID) or (one.before and not one.drops):
            op.patch(one.collection, one.id, one.sets, None)
        else:
            op.put(one.collection, one.id, one.after, None)


def _payload(id_: str, place: Place, session: SessionState) -> dict[str, Value]:
    payload: dict[str, Value] = {
        "rollbackId": id_,
        "epoch": place.epoch,
        "seq": place.seq,
        "hash": place.hash,
        "fromEpoch": session.epoch,
        "fromSeq": session.seq,
        "fromHash": session.hash,
    }
    if place.checkpoint is not None:
        payload["checkpointId"] = place.checkpoint
    if place.rollback is not None:
        payload["undoes"] = place.rollback
    return payload


def _place_of(event: Event, stamp: Stamp, id_: str) -> Place | None:
    payload: Mapping[str, Any] = event.payload
    if event.type != ROLLBACK or payload.get("rollbackId") != id_:
        return None
    match payload:
        case {"fromEpoch": int(epoch), "fromSeq": int(seq), "fromHash": bytes() | None as hash_}:
            return Place(epoch, seq, hash_, stamp, rollback=id_)
    return None
