"""Checkpoints, rollback, time travel and forks, on a replica that may be offline or behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.client.wire import SECOND, Wire, restored, state_of

from syncline.client import Replica, Session
from syncline.client.sessions import Checkpoints
from syncline.sync import (
    CHECKPOINT_COLLECTION,
    HEADER_COLLECTION,
    HEADER_ID,
    HistoryMissing,
    InvalidValue,
    NotFound,
    Record,
    SessionConflict,
    SessionDeleted,
    TooLarge,
)

NOTE = ("notes", "n1")


def opened(wire: Wire, name: str = "ann") -> tuple[Replica, Session, Checkpoints]:
    replica = wire.open(name)
    session = replica.create_session("mine", session_id="s") if name == "ann" else None
    session = session or replica.session("s")
    return replica, session, Checkpoints(session)


def shown(session: Session) -> dict[Any, Any]:
    return {k: v for k, v in Checkpoints(session).state_at().records.items() if k[0][0] != "$"}


def stored(session: Session, collection: str, id_: str) -> Record:
    record = session._core.visible(session.id, collection, id_)
    assert record is not None
    return record


# Reading the past.


def test_R1_11_the_state_at_every_seq_is_what_showed_there(wire: Wire) -> None:
    ann, session, past = opened(wire)
    states = []
    writes: list[Callable[[], object]] = [
        lambda: session.put(*NOTE, {"a": 1, "b": 1}),
        lambda: session.patch(*NOTE, {"b": 2}),
        lambda: session.delete(*NOTE),
        lambda: session.put("notes", "n2", {}),
        lambda: session.put(*NOTE, {"z": None}),
    ]
    for write in writes:
        write()
        states.append(shown(session))
    wire.sync(ann)
    for seq, state in enumerate(states, 2):
        at = past.state_at(seq)
        assert (at.seq, at.epoch) == (seq, 1)
        assert {k: v for k, v in at.records.items() if k[0] == "notes"} == state
    assert past.state_at(0).records == {}
    assert past.state_at(1).header["label"] == "mine"
    assert past.state_at(3).get(*NOTE) == {"a": 1, "b": 2}
    assert past.state_at(3).collection("notes") == {"n1": {"a": 1, "b": 2}}
    assert past.state_at(4).get(*NOTE) is None
    difference = past.diff(3, 6)
    assert difference.apply(past.state_at(3).records) == past.state_at(6).records


@pytest.mark.parametrize("seq", [-1, 7, "none", None.__class__, 1.5, True])
def test_what_is_no_place_is_said(wire: Wire, seq: Any) -> None:
    _, _, past = opened(wire)
    with pytest.raises((NotFound, InvalidValue)):
        past.state_at(seq)


def test_after_a_bootstrap_the_past_is_said_to_be_missing_and_the_present_can_be_read(
    folder: Path,
) -> None:
    wire = Wire(folder=folder, bootstrap_entries_min=2)
    with contextlib.closing(wire):
        look_back(wire)


def look_back(wire: Wire) -> None:
    ann, session, past = opened(wire)
    for n in range(5):
        session.put("notes", f"n{n}", {"n": n})
    point = past.create("five")
    session.put("notes", "more", {})
    wire.sync(ann)
    bob, there, view = opened(wire, "bob")
    wire.sync(bob)
    with pytest.raises(HistoryMissing, match="only after seq 8; .* at seq 8 alone") as caught:
        view.state_at(3)
    assert caught.value.detail["readable_from"] == 8
    with pytest.raises(HistoryMissing):
        view.rollback(point.id)
    assert view.state_at(8).records == past.state_at(8).records == view.state_at().records
    assert view.list() == past.list() == [point]
    there.put("notes", "again", {})
    wire.sync(bob)
    with pytest.raises(HistoryMissing):
        view.state_at(8)


# Checkpoints.


def test_a_checkpoint_is_what_its_author_saw_also_when_others_came_first(wire: Wire) -> None:
    ann, session, past = opened(wire)
    session.put(*NOTE, {"a": 1, "b": 1})
    wire.sync(ann)
    bob, there, view = opened(wire, "bob")
    wire.sync(bob)
    session.patch(*NOTE, {"a": 2})
    point = past.create("offline")
    session.patch(*NOTE, {"a": 3})
    assert (point.seq, point.label, point.vector) == (2, "offline", {"ann": 3})
    there.patch(*NOTE, {"b": 9})
    wire.sync(bob)
    assert past.state_at(point).get(*NOTE) == {"a": 2, "b": 1}
    wire.sync(ann)
    wire.sync(bob)
    assert session.get(*NOTE) == {"a": 3, "b": 9}
    for anyone in (past, view):
        assert anyone.state_at(point.id).get(*NOTE) == {"a": 2, "b": 1}
        assert anyone.latest() == point


def test_R1_11_checkpoints_are_listed_oldest_first_and_pruned(wire: Wire) -> None:
    _, session, past = opened(wire)
    assert past.list() == [] and past.latest() is None and past.prune(keep=1) == ()
    made = []
    for label in "abcd":
        wire.now += SECOND
        made.append(past.create(label))
    assert past.list() == made and past.latest() == made[-1]
    assert past.get(made[1].id) == made[1]
    waiting = len(session.pending())
    assert past.prune(keep=2, ids=[made[3].id]) == (made[0].id, made[1].id, made[3].id)
    assert len(session.pending()) == waiting + 1
    assert past.prune(before=made[2].created_at) == ()
    assert past.list() == [made[2]]
    for wrong in (lambda: past.get(made[0].id), lambda: past.prune(ids=["x"])):
        with pytest.raises(NotFound):
            wrong()
    with pytest.raises(InvalidValue):
        past.prune(keep=-1)


def test_what_an_app_wrote_there_that_is_no_checkpoint_is_passed_over(wire: Wire) -> None:
    _, session, past = opened(wire)
    session.put(CHECKPOINT_COLLECTION, "x", {"label": 1})
    assert past.list() == []


# Rollback.


def test_R1_11_a_rollback_brings_back_what_showed_and_can_be_rolled_back(wire: Wire) -> None:
    ann, session, past = opened(wire)
    session.put(*NOTE, {"a": 1, "b": 1})
    session.put("notes", "gone", {"x": 1})
    point = past.create()
    session.put(*NOTE, {"a": 2, "c": 2})
    session.delete("notes", "gone")
    session.put("notes", "new", {})
    session.patch(HEADER_COLLECTION, HEADER_ID, {"label": "renamed", "owner": "bob", "mood": 1})
    before, vector = shown(session), dict(stored(session, *NOTE).vector)
    back = past.rollback(point)
    assert shown(session) == {
        ("notes", "n1"): {"a": 1, "b": 1},
        ("notes", "gone"): {"x": 1},
    }
    header = session.get(HEADER_COLLECTION, HEADER_ID)
    assert header is not None
    assert (header["label"], header["owner"], header["mood"]) == ("mine", "bob", None)
    # Nothing is rewound.
    assert stored(session, *NOTE).vector["ann"] > vector["ann"]
    assert [one.kind for one in back.wrote.records] == ["changed", "added", "changed", "removed"]
    undone = past.rollback(back.id)
    assert shown(session) == before
    past.rollback(undone.id)
    assert session.get(*NOTE) == {"a": 1, "b": 1}
    wire.sync(ann)
    assert state_of(ann, "s") == wire.state("s")
    assert past.rollbacks()[0][:2] == (9, back.id)


def test_a_rollback_is_one_op_and_keeps_the_events(wire: Wire) -> None:
    ann, session, past = opened(wire)
    session.append("said", {"text": "a"})
    wire.sync(ann)
    session.append("said", {"text": "b"})
    waiting = len(session.pending())
    past.rollback(2)
    assert len(session.pending()) == waiting + 1
    assert [e.payload["text"] for e in session.events() if e.type == "said"] == ["a", "b"]
    assert [e.payload["text"] for e in past.live_events()] == ["a"]
    assert [e.payload["text"] for e in past.live_events(2)] == ["a"]


def test_a_rollback_of_some_collections_leaves_the_others(wire: Wire) -> None:
    ann, session, past = opened(wire)
    session.put(*NOTE, {"a": 1})
    session.put("tasks", "t", {"a": 1})
    point = past.create()
    session.put(*NOTE, {"a": 2})
    session.put("tasks", "t", {"a": 2})
    past.rollback(point, collections=["tasks"])
    assert (session.get(*NOTE), session.get("tasks", "t")) == ({"a": 2}, {"a": 1})


def test_a_rollback_settles_with_what_others_wrote_meanwhile(wire: Wire) -> None:
    ann, session, past = opened(wire)
    session.put(*NOTE, {"a": 1, "b": 1})
    wire.sync(ann)
    session.patch(*NOTE, {"a": 2})
    wire.sync(ann)
    bob, there, _ = opened(wire, "bob")
    wire.sync(bob)
    there.patch(*NOTE, {"a": 7, "b": 7})
    wire.now += SECOND
    past.rollback(2)
    wire.sync(bob)
    wire.sync(ann)
    wire.sync(bob)
    assert session.get(*NOTE) == there.get(*NOTE) == {"a": 1, "b": 7}
    assert [(c.field, c.value) for c in there.conflicts()] == [("a", 7)]
    assert state_of(ann, "s") == state_of(bob, "s") == wire.state("s")


def test_a_rollback_from_a_state_that_is_no_more_fails_and_stores_nothing(wire: Wire) -> None:
    ann, session, past = opened(wire)
    session.put(*NOTE, {"a": 1})
    wire.sync(ann)
    with pytest.raises(SessionConflict, match="at seq 2, not at 1"):
        past.rollback(1, expected_seq=1)
    assert session.pending() == []
    past.rollback(1, expected_seq=2)
    assert session.get(*NOTE) is None


def test_a_rollback_that_no_op_can_hold_fails_before_anything_is_stored(wire: Wire) -> None:
    ann, session, past = opened(wire)
    for n in range(5):
        session.put("big", str(n), {"text": "x" * 900_000})
    point = past.create()
    for n in range(5):
        session.put("big", str(n), {"text": ""})
    waiting = len(session.pending())
    with pytest.raises(TooLarge, match="does not fit into one op.* fork the session"):
        past.rollback(point)
    assert len(session.pending()) == waiting and session.get("big", "0") == {"text": ""}
    fork = past.fork(point)
    assert [len(fields["text"]) for _, fields in fork.records("big")] == [900_000] * 5


def test_a_deleted_session_has_no_checkpoints_and_takes_no_rollback_but_can_be_forked(
    wire: Wire,
) -> None:
    ann, session, past = opened(wire)
    session.put(*NOTE, {"a": 1})
    point = past.create()
    ann.delete_session("s")
    assert past.list() == []
    for write in (past.create, lambda: past.rollback(point)):
        with pytest.raises(SessionDeleted):
            write()
    fork = past.fork()
    assert fork.get(*NOTE) == {"a": 1} and not fork.deleted


# Forks.


def test_R1_11_a_fork_begins_with_the_state_and_its_times_and_leaves_the_original(
    wire: Wire,
) -> None:
    ann, session, past = opened(wire)
    session.put(*NOTE, {"a": 1, "b": 1})
    wire.now += SECOND
    session.patch(*NOTE, {"b": 2})
    session.append("said", {"text": "hello"})
    session.patch(HEADER_COLLECTION, HEADER_ID, {"owner": "ann", "topic": "tea"})
    point = past.create()
    wire.now += SECOND
    session.delete(*NOTE)
    session.append("said", {"text": "later"})
    before = (shown(session), len(session.pending()))
    fork = past.fork(point, label="other")
    assert (shown(session), len(session.pending())) == before
    assert fork.id != "s" and len(fork.id) == 36 and fork.id[14] == "7"
    assert shown(fork) == {("notes", "n1"): {"a": 1, "b": 2}}
    old, new = wire.now - 2 * SECOND, wire.now - SECOND
    times = {name: at.updated_at for name, at in stored(fork, *NOTE).stamps.items()}
    assert times == {"a": old, "b": new}
    assert {at.client for at in stored(fork, *NOTE).stamps.values()} == {"ann"}
    assert stored(fork, *NOTE).vector == {"ann": 2}
    header = fork.get(HEADER_COLLECTION, HEADER_ID)
    assert header == {
        "label": "other",
        "topic": "tea",
        "status": "active",
        "created_at": wire.now,
        "parent": "s",
        "forked_from": {"session": "s", "epoch": 0, "seq": 0, "hash": None, "checkpoint": point.id},
    }
    (event,) = fork.events()
    assert (event.payload, event.at) == ({"text": "hello"}, new)
    wire.sync(ann)
    bob = wire.open("bob")
    wire.sync(bob)
    assert state_of(bob, fork.id) == state_of(ann, fork.id) == wire.state(fork.id)
    # The first op carries the header and every record whole.
    first = wire.log(fork.id)[0].read()
    assert [getattr(a.change, "id", None) for a in first] == ["header", "n1"]


def test_a_fork_at_a_seq_and_one_without_events(wire: Wire) -> None:
    ann, session, past = opened(wire)
    session.put(*NOTE, {"a": 1})
    session.append("said", {})
    session.put(*NOTE, {"a": 2})
    wire.sync(ann)
    fork = past.fork(2)
    assert fork.get(*NOTE) == {"a": 1} and fork.events() == []
    assert fork.label == "mine"
    assert [e.type for e in past.fork(3).events()] == ["said"]
    now = past.fork(events=False)
    assert now.get(*NOTE) == {"a": 2} and now.events() == []
    header = now.get(HEADER_COLLECTION, HEADER_ID)
    assert header is not None and header["forked_from"] == {
        "session": "s",
        "epoch": 1,
        "seq": 4,
        "hash": wire.state("s")["hash"],
    }


def test_a_fork_after_a_rollback_has_the_conversation_as_it_is_now(wire: Wire) -> None:
    ann, session, past = opened(wire)
    session.append("said", {"text": "a"})
    point = past.create()
    session.append("said", {"text": "b"})
    past.rollback(point)
    session.append("said", {"text": "c"})
    assert [e.payload for e in past.fork().events()] == [{"text": "a"}, {"text": "c"}]


# After a restore of the server.


def test_a_checkpoint_outlives_a_healing_by_its_vector(wire: Wire) -> None:
    ann, session, past = opened(wire)
    session.put(*NOTE, {"a": 1})
    wire.sync(ann)
    backup = restored(wire.store, 2)
    session.patch(*NOTE, {"a": 2})
    wire.sync(ann)
    point = past.create()
    session.patch(*NOTE, {"a": 3})
    wire.sync(ann)
    bob, there, view = opened(wire, "bob")
    wire.serve(backup)
    wire.sync(bob)
    there.put("notes", "bob's", {})
    wire.sync(bob)
    wire.sync(ann)
    wire.sync(bob)
    assert state_of(bob, "s") == wire.state("s")
    # Bob has the whole new log from its beginning, in which the seq means something else.
    assert view.state_at(point.id).get(*NOTE) == {"a": 2}
    assert view.state_at(point.id).get("notes", "bob's") is None
