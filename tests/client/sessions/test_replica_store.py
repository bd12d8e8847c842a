"""A replica as a store of sessions: what syncs, what merges, and when a save is stale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.client.wire import SECOND, Wire

from syncline.client import Replica
from syncline.client.sessions import (
    AgentDefinition,
    AgentSession,
    AgentState,
    ChangeModel,
    ChangeSystemPrompt,
    ClearSession,
    Message,
    ReplicaSessionStore,
    ResumeSession,
    SendMessage,
    SessionAction,
    SessionRuntime,
    SessionStatus,
    SuspendSession,
    UpdateTask,
    WriteMetadata,
)
from syncline.sync import (
    HEADER_COLLECTION,
    HEADER_ID,
    InvalidValue,
    NotFound,
    SessionConflict,
    SessionNotFound,
    TooLarge,
)

HELPER = AgentDefinition("helper", "A helper", system_prompt="Help.", model_locked=False)


class Device:
    """A replica, its store of sessions and a runtime over it."""

    def __init__(self, wire: Wire, name: str) -> None:
        self.wire = wire
        self.replica = wire.open(name)
        self.store = ReplicaSessionStore(self.replica)
        self.runtime = SessionRuntime(self.store)

    def do(self, id_: str, action: SessionAction) -> AgentSession:
        self.wire.now += SECOND
        return self.runtime.execute(id_, action)

    def kept(self, id_: str) -> AgentSession:
        session = self.store.load(id_)
        assert session is not None
        return session

    def sync(self) -> None:
        self.wire.sync(self.replica)


@pytest.fixture
def ann(wire: Wire) -> Device:
    return Device(wire, "ann")


@pytest.fixture
def bob(wire: Wire) -> Device:
    return Device(wire, "bob")


def shared(ann: Device, bob: Device, seed: AgentState | None = None) -> str:
    """The id of a session that both have."""
    id_ = ann.runtime.create(HELPER, seed).id
    ann.sync()
    bob.sync()
    return id_


def meet(*devices: Device) -> None:
    for device in (*devices, *devices):
        device.sync()


def texts(session: AgentSession) -> list[Any]:
    return [message.content for message in session.state.messages]


# What syncs.


def test_R2_11_what_an_action_changes_is_one_op_of_the_outbox(ann: Device) -> None:
    session = ann.runtime.create(HELPER)
    ann.do(session.id, SendMessage("hello"))
    ann.do(session.id, SuspendSession())
    created, sent, suspended = ann.replica.session(session.id).pending()
    assert [(type(c).__name__, c.collection) for c in sent.changes] == [  # type: ignore[union-attr]
        ("Patch", "$session"),
        ("Put", "agent_messages"),
    ]
    (change,) = suspended.changes
    assert change.fields == {"status": "suspended", "saved": True}  # type: ignore[union-attr]
    assert created.n == 1


def test_R2_11_a_session_of_one_device_goes_on_on_another(ann: Device, bob: Device) -> None:
    id_ = shared(ann, bob, AgentState(metadata={"ticket": 1}, task="sum it up"))
    ann.do(id_, SendMessage("one"))
    meet(ann, bob)
    assert bob.kept(id_).state == ann.kept(id_).state
    bob.do(id_, SendMessage("two"))
    bob.do(id_, UpdateTask("another task"))
    meet(ann, bob)
    assert ann.kept(id_).state == bob.kept(id_).state
    assert texts(ann.kept(id_)) == ["one", "two"]
    assert (ann.kept(id_).state.task, ann.kept(id_).state.metadata) == (
        "another task",
        {"ticket": 1},
    )


def test_R2_11_header_fields_of_two_devices_merge_one_by_one(ann: Device, bob: Device) -> None:
    id_ = shared(ann, bob, AgentState(metadata={"a": 0, "b": 0}))
    ann.do(id_, SuspendSession())
    ann.do(id_, WriteMetadata("a", "ann"))
    ann.do(id_, UpdateTask("ann's task"))
    bob.do(id_, WriteMetadata("b", "bob"))
    bob.do(id_, ChangeSystemPrompt("bob's prompt"))
    bob.do(id_, ChangeModel({"model": "bob's"}))
    meet(ann, bob)
    for device in (ann, bob):
        session = device.kept(id_)
        assert session.status is SessionStatus.SUSPENDED
        assert session.state.metadata == {"a": "ann", "b": "bob"}
        assert session.state.task == "ann's task"
        assert session.system_prompt == "bob's prompt"
        assert session.model == {"model": "bob's"}
        assert device.replica.session(id_).conflicts() == []


def test_R2_11_messages_of_two_devices_become_one_list_each_in_its_order(
    ann: Device, bob: Device
) -> None:
    id_ = shared(ann, bob)
    ann.do(id_, SendMessage("first"))
    meet(ann, bob)
    for text in ("ann 1", "ann 2"):
        ann.do(id_, SendMessage(text))
    for text in ("bob 1", "bob 2"):
        bob.do(id_, SendMessage(text))
    meet(ann, bob)
    assert texts(ann.kept(id_)) == ["first", "ann 1", "ann 2", "bob 1", "bob 2"]
    assert ann.kept(id_).state == bob.kept(id_).state


def test_R2_11_an_answer_stands_behind_its_question_on_a_clock_that_is_behind(wire: Wire) -> None:
    ann, bob = Device(wire, "ann"), Device.__new__(Device)
    bob.wire, bob.replica = wire, wire.open("bob", skew=-3600 * SECOND)
    bob.store = ReplicaSessionStore(bob.replica)
    bob.runtime = SessionRuntime(bob.store)
    id_ = ann.runtime.create(HELPER).id
    ann.do(id_, SendMessage("question"))
    ann.sync()
    bob.sync()
    bob.do(id_, SendMessage("answer"))
    meet(bob, ann)
    assert texts(ann.kept(id_)) == ["question", "answer"]


def test_R1_3_what_lost_is_listed_and_resolve_conflict_puts_it_back_everywhere(
    ann: Device, bob: Device
) -> None:
    id_ = shared(ann, bob)
    ann.do(id_, UpdateTask("ann's"))
    bob.do(id_, UpdateTask("bob's"))
    meet(ann, bob)
    (conflict,) = ann.replica.session(id_).conflicts()
    assert (conflict.field, conflict.value) == ("task", "ann's")
    assert ann.runtime.resolve_conflict(id_, conflict.id, "local").state.task == "ann's"
    meet(ann, bob)
    assert bob.kept(id_).state.task == "ann's"
    assert bob.replica.session(id_).conflicts() == []
    with pytest.raises(NotFound, match="resolved already"):
        bob.runtime.resolve_conflict(id_, conflict.id, "remote")
    with pytest.raises(InvalidValue, match="'local', 'remote' or fields"):
        bob.runtime.resolve_conflict(id_, conflict.id, "both")


def test_R1_7_a_deletion_reaches_the_other_device_and_its_id_stays_taken(
    ann: Device, bob: Device
) -> None:
    id_ = shared(ann, bob)
    ann.runtime.delete(id_)
    bob.do(id_, WriteMetadata("late", 1))
    meet(ann, bob)
    for device in (ann, bob):
        assert device.store.load(id_) is None
        assert device.runtime.list_sessions() == []
        with pytest.raises(SessionNotFound):
            device.runtime.get_session(id_)
        with pytest.raises(SessionConflict):
            device.store.create(AgentSession.fresh(id_, HELPER))


# When a save is stale.


def save_late(device: Device, loaded: AgentSession) -> None:
    device.store.save(loaded.with_state(loaded.state.with_metadata("late", True)))


CHANGES: dict[str, Callable[[Device, str], Any]] = {
    "status": lambda device, id_: device.do(id_, SuspendSession()),
    "metadata": lambda device, id_: device.do(id_, WriteMetadata("other", 1)),
    "message": lambda device, id_: device.do(id_, SendMessage("hi")),
    "data": lambda device, id_: device.store.save(
        device.kept(id_).with_state(device.kept(id_).state.with_data("job", 1))
    ),
    "label, by other means": lambda device, id_: device.replica.session(id_).patch(
        HEADER_COLLECTION, HEADER_ID, {"label": "renamed"}
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_R2_9_a_remote_change_that_arrives_makes_a_stale_save_a_conflict(
    ann: Device, bob: Device, what: str
) -> None:
    id_ = shared(ann, bob)
    loaded = ann.kept(id_)
    CHANGES[what](bob, id_)
    bob.sync()
    ann.sync()
    with pytest.raises(SessionConflict):
        save_late(ann, loaded)
    assert ann.replica.session(id_).pending() == []
    save_late(ann, ann.kept(id_))
    meet(ann, bob)
    assert bob.kept(id_).state == ann.kept(id_).state


@pytest.mark.parametrize("what", CHANGES)
def test_R2_9_a_save_of_another_process_makes_a_stale_save_a_conflict(
    ann: Device, wire: Wire, what: str
) -> None:
    id_ = ann.runtime.create(HELPER).id
    other = Device(wire, "ann")
    loaded = ann.kept(id_)
    CHANGES[what](other, id_)
    with pytest.raises(SessionConflict):
        save_late(ann, loaded)
    assert ann.kept(id_) == other.kept(id_)


def test_R2_9_nothing_else_makes_a_save_stale(ann: Device, bob: Device) -> None:
    id_ = shared(ann, bob)
    ann.do(id_, WriteMetadata("waits", 1))
    loaded = ann.kept(id_)
    notes = bob.replica.session(id_)
    notes.put("notes", "n1", {"title": "not the runtime's"})
    notes.append("user.message", {"text": "an event"})
    bob.do(bob.runtime.create(HELPER).id, SuspendSession())
    meet(bob, ann)  # What waited is settled, and all that comes along.
    ann.replica.session(id_).put("notes", "n2", {"title": "own"})
    assert ann.kept(id_) == loaded
    save_late(ann, loaded)
    assert ann.kept(id_).version == loaded.version + 1


def test_R2_9_a_bootstrap_that_brings_what_was_known_makes_no_save_stale(
    ann: Device, bob: Device
) -> None:
    id_ = shared(ann, bob, AgentState(messages=(Message.user("hi"),)))
    loaded = ann.kept(id_)
    ann.replica._core.begin_bootstrap(id_, afresh=True)
    ann.sync()
    assert ann.kept(id_) == loaded
    ann.replica._core.begin_bootstrap(id_, afresh=True)
    bob.do(id_, SuspendSession())
    bob.sync()
    ann.sync()
    with pytest.raises(SessionConflict):
        save_late(ann, loaded)


def test_R2_9_an_own_write_that_is_stamped_again_makes_no_save_stale(wire: Wire) -> None:
    ann = Device.__new__(Device)
    ann.wire, ann.replica = wire, wire.open("ann", skew=3600 * SECOND)
    ann.store = ReplicaSessionStore(ann.replica)
    loaded = ann.store.create(AgentSession.fresh("s1", HELPER))
    ann.sync()
    kept = ann.kept("s1")
    assert kept.header.updated_at < loaded.header.updated_at
    assert kept.version == loaded.version
    save_late(ann, loaded)


def test_R2_9_a_refused_write_is_taken_back_and_makes_a_save_stale(
    ann: Device, bob: Device
) -> None:
    id_ = shared(ann, bob)
    ann.do(id_, SuspendSession())
    loaded = ann.kept(id_)
    (op,) = ann.replica.session(id_).pending()
    core = ann.replica._core
    assert core.acquire_lease()
    core.refused(id_, op.n, 3013, "the status is locked", {})
    assert ann.kept(id_).status is SessionStatus.ACTIVE
    assert ann.kept(id_).version == loaded.version + 1
    with pytest.raises(SessionConflict):
        save_late(ann, loaded)


def test_C062_the_version_never_goes_back_and_never_names_two_contents(
    ann: Device, bob: Device
) -> None:
    id_ = shared(ann, bob)
    seen: dict[int, AgentState] = {}

    def see(session: AgentSession) -> AgentSession:
        assert seen.setdefault(session.version, session.state) == session.state
        assert session.version == max(seen)
        return session

    draft = see(ann.kept(id_))
    for n in range(4):
        see(ann.do(id_, WriteMetadata("n", n)))
        bob.do(id_, SendMessage(f"bob {n}"))
        meet(ann, bob)
        see(ann.kept(id_))
        # Back to what the draft was: a write as any other, whoever makes it.
        see(ann.store.save(ann.kept(id_).with_state(draft.state)))
        see(ann.do(id_, ResumeSession()))
    with pytest.raises(SessionConflict):
        save_late(ann, draft)
    for version in range(1, max(seen)):
        stale = replace(draft, header=replace(draft.header, version=version))
        with pytest.raises(SessionConflict):
            save_late(ann, stale)


# Within the replica.


def test_a_save_within_a_transaction_is_part_of_its_op(ann: Device) -> None:
    id_ = ann.runtime.create(HELPER).id
    session = ann.replica.session(id_)
    with session.transaction():
        session.append("user.message", {"text": "hi"})
        ann.runtime.execute(id_, SendMessage("hi"))
        done = ann.runtime.execute(id_, WriteMetadata("n", 1))
    assert (done.version, ann.kept(id_)) == (3, done)
    assert len(session.pending()) == 2


def test_an_abandoned_transaction_takes_the_save_along(ann: Device) -> None:
    created = ann.runtime.create(HELPER)
    session = ann.replica.session(created.id)
    with pytest.raises(RuntimeError), session.transaction():
        ann.runtime.execute(created.id, SendMessage("hi"))
        raise RuntimeError("abandoned")
    assert ann.kept(created.id) == created
    save_late(ann, created)


def test_a_save_that_is_too_large_stores_nothing(ann: Device) -> None:
    created = ann.runtime.create(HELPER)
    with pytest.raises(TooLarge):
        ann.runtime.execute(created.id, WriteMetadata("huge", "x" * (1 << 20)))
    assert ann.kept(created.id) == created
    assert ann.do(created.id, WriteMetadata("small", "x")).version == 2


def test_a_session_that_was_made_without_a_runtime_is_one_too(ann: Device) -> None:
    made = ann.replica.create_session("my notes")
    session = ann.kept(made.id)
    assert (session.header.label, session.version, session.status) == (
        "my notes",
        1,
        SessionStatus.ACTIVE,
    )
    assert ann.store.list_headers() == [session.header]
    ann.do(made.id, SendMessage("hi"))
    assert made.label == "my notes"
    assert texts(ann.kept(made.id)) == ["hi"]


def test_a_session_that_is_only_known_by_name_is_not_there_yet(ann: Device) -> None:
    ann.replica.session("s1")
    assert ann.store.load("s1") is None
    assert ann.store.list_headers() == []
    with pytest.raises(SessionNotFound):
        ann.store.save(AgentSession.fresh("s1", HELPER))
    ann.store.delete("s1")
    assert ann.replica.session("s1").pending() == []


def test_a_label_of_a_runtime_session_shows_where_sessions_are_listed(
    ann: Device, wire: Wire
) -> None:
    id_ = ann.runtime.create(HELPER).id
    ann.sync()
    assert ann.replica.session(id_).label == "A helper"
    head = wire.store.head(id_)
    assert head is not None
    assert head.label == "A helper"


def test_what_others_put_into_the_records_is_read_as_far_as_it_makes_sense(ann: Device) -> None:
    id_ = ann.runtime.create(HELPER, AgentState(messages=(Message.user("hi", id="m1"),))).id
    session = ann.replica.session(id_)
    strange = {"status": "odd", "task": 5, "model": 7, "definition": [], "execution": None}
    session.patch(HEADER_COLLECTION, HEADER_ID, {**strange, "prompt": 1, "metadata.": 1})
    session.put("agent_messages", "m0", {"role": 3, "content": "odd", "order": "x"})
    read = ann.kept(id_)
    assert (read.status, read.state.task, read.model) == (SessionStatus.ACTIVE, "", None)
    assert [(m.role, m.content) for m in read.state.messages] == [
        ("unknown", "odd"),
        ("user", "hi"),
    ]
    # A change of something else leaves what is strange as it is.
    ann.do(id_, WriteMetadata("n", 1))
    header = session.get(HEADER_COLLECTION, HEADER_ID)
    assert header is not None
    assert {key: header[key] for key in strange} == strange


def test_a_cleared_session_is_clear_on_the_other_device(ann: Device, bob: Device) -> None:
    seed = AgentState(messages=(Message.user("a"), Message.user("b")), data={"job": 1})
    id_ = shared(ann, bob, replace(seed, metadata={"kept": 1}))
    bob.do(id_, ClearSession())
    meet(bob, ann)
    assert ann.kept(id_).state == AgentState(metadata={"kept": 1})


def test_two_messages_with_one_id_are_refused(ann: Device) -> None:
    created = ann.runtime.create(HELPER)
    twice = AgentState(messages=(Message.user("a", id="m"), Message.user("b", id="m")))
    with pytest.raises(InvalidValue, match="two messages have one id"):
        ann.store.save(created.with_state(twice))
    assert ann.kept(created.id) == created
    assert isinstance(ann.replica, Replica)
