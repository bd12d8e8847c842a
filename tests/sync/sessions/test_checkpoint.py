"""States in time, what differs between two, which events count after rollbacks, and fork layers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sync.strategies import FIELDS, NAMES, records

from syncline.sync import CHECKPOINT_COLLECTION, InvalidValue, Record, Stamp, same
from syncline.sync.sessions import (
    CHECKPOINTED,
    ROLLBACK,
    Checkpoint,
    Fields,
    Key,
    PlacedEvent,
    check_label,
    difference,
    fork_layers,
    in_parts,
    is_kept,
    live_events,
    read_checkpoint,
    rollback_difference,
)

STATES = st.dictionaries(
    st.tuples(st.sampled_from(["notes", "tasks"]), st.sampled_from(["a", "b", "c"])),
    FIELDS,
    max_size=5,
)
HEADER = ("$session", "header")


@settings(max_examples=40)
@given(STATES, STATES)
def test_a_difference_applied_to_the_one_state_gives_the_other(
    before: dict[Key, Fields], after: dict[Key, Fields]
) -> None:
    found = difference(before, after)
    made = found.apply(before)
    assert made.keys() == after.keys()
    assert all(same(dict(made[key]), dict(after[key])) for key in after)
    assert len(found.added) + len(found.changed) + len(found.removed) == len(found.records)
    assert not difference(after, made) and not difference(before, before)


def test_a_difference_says_which_fields_of_which_records() -> None:
    before = {("n", "1"): {"a": 1, "b": 2, "c": 3}, ("n", "2"): {"x": 0}}
    after = {("n", "1"): {"a": 1, "b": 2.0, "d": 4}, ("n", "3"): {}}
    found = difference(before, after)
    changed, removed, added = found.records
    assert (changed.key, changed.kind) == (("n", "1"), "changed")
    assert changed.sets == {"b": 2.0, "d": 4} and changed.drops == ("c",)
    assert (removed.key, removed.kind, removed.before) == (("n", "2"), "removed", {"x": 0})
    assert (added.key, added.kind, added.after) == (("n", "3"), "added", {})


def test_a_rollback_leaves_rights_and_what_is_synclines_own_alone() -> None:
    now: dict[Key, Fields] = {
        HEADER: {"owner": "bob", "member:cyd": "editor", "label": "new", "mood": "good"},
        (CHECKPOINT_COLLECTION, "c1"): {"seq": 3},
        ("notes", "n1"): {"a": 2},
    }
    then: dict[Key, Fields] = {HEADER: {"owner": "ann", "label": "old"}, ("notes", "n1"): {"a": 1}}
    header, note = rollback_difference(now, then).records
    assert header.sets == {"label": "old", "mood": None}
    assert note.sets == {"a": 1}
    only = rollback_difference(now, then, ["notes"]).records
    assert [one.key for one in only] == [("notes", "n1")]
    assert not rollback_difference({HEADER: now[HEADER]}, {})
    same_but_rights = {HEADER: {"owner": "ann", "label": "new", "mood": "good"}}
    assert not rollback_difference({HEADER: now[HEADER]}, same_but_rights)


@pytest.mark.parametrize(
    ("field", "kept"),
    [("owner", True), ("member:ann", True), ("version", True), ("label", False), ("status", False)],
)
def test_what_gives_rights_and_counts_versions_is_kept(field: str, kept: bool) -> None:
    assert is_kept(field) is kept


# Checkpoints as records.

STAMP = Stamp(7, "ann", 3)
POINT = Checkpoint("c1", "before", 1, 12, bytes(32), {"ann": 2, "bob": 9}, 5, STAMP)


def _record(fields: dict[str, Any], alive: bool = True) -> Record:
    return Record(fields, dict.fromkeys(fields, STAMP), None, alive, STAMP, {})


def test_a_checkpoint_is_read_back_from_its_record() -> None:
    assert read_checkpoint("c1", _record(POINT.fields())) == POINT
    never_synced = Checkpoint("c1", "", 0, 0, None, {}, 5, STAMP)
    assert read_checkpoint("c1", _record(never_synced.fields())) == never_synced


@pytest.mark.parametrize(
    "wrong",
    [{"label": 1}, {"seq": -1}, {"seq": "1"}, {"hash": b"short"}, {"vector": {"ann": "x"}}],
)
def test_what_is_no_checkpoint_is_none(wrong: dict[str, Any]) -> None:
    assert read_checkpoint("c1", _record({**POINT.fields(), **wrong})) is None
    assert read_checkpoint("c1", _record(POINT.fields(), alive=False)) is None
    assert read_checkpoint("c1", _record({})) is None


@pytest.mark.parametrize("label", [None, 1, "a\nb", "x" * 1025])
def test_a_label_is_short_text(label: Any) -> None:
    with pytest.raises(InvalidValue):
        check_label(label)
    assert check_label("") == "" and check_label("$ x") == "$ x"


# Events after rollbacks.


def said(seq: int | None, text: str, client: str = "ann") -> PlacedEvent:
    return PlacedEvent(seq, client, "said", {"text": text})


def back(seq: int | None, to: int, seen: int, client: str = "ann", **more: Any) -> PlacedEvent:
    return PlacedEvent(seq, client, ROLLBACK, {"seq": to, "fromSeq": seen, **more})


def texts(events: list[PlacedEvent], *where: Any) -> list[Any]:
    return [events[place].payload.get("text") for place in live_events(events, *where)]


def test_without_a_rollback_all_events_count() -> None:
    events = [said(1, "a"), said(2, "b"), said(None, "c")]
    assert texts(events) == ["a", "b", "c"]
    assert texts(events, 1) == ["a"]


def test_a_rollback_takes_out_what_its_author_had_seen_after_the_place() -> None:
    events = [said(1, "a"), said(2, "b"), said(None, "mine"), back(None, 1, 2), said(None, "c")]
    assert texts(events) == ["a", "c"]


def test_what_others_said_unseen_stays() -> None:
    events = [said(1, "a"), said(2, "b"), said(3, "unseen", "bob"), back(4, 1, 2), said(5, "c")]
    assert texts(events) == ["a", "unseen", "c"]


def test_a_rollback_to_before_another_brings_back_what_that_took_out() -> None:
    events = [said(1, "a"), said(2, "b"), back(3, 1, 2), said(4, "c"), back(5, 2, 4), said(6, "d")]
    assert texts(events) == ["a", "b", "d"]
    events += [back(7, 4, 6)]
    assert texts(events) == ["a", "c"]
    assert texts(events, 6) == ["a", "b", "d"]


def test_undoing_one_that_is_not_in_the_log_yet_brings_back_the_own_that_waited() -> None:
    events = [
        said(1, "a"),
        said(None, "waiting"),
        back(None, 0, 1, rollbackId="r1"),
        said(None, "other"),
        back(None, 1, 1, undoes="r1"),
    ]
    assert texts(events[:4]) == ["other"]
    assert texts(events) == ["a", "waiting"]


def test_a_checkpoint_counts_what_its_author_had_waiting_wherever_it_came_to_stand() -> None:
    events = [
        said(1, "a"),
        said(3, "bob's, meanwhile", "bob"),
        said(4, "waited"),
        PlacedEvent(5, "ann", CHECKPOINTED, {"checkpointId": "c1"}),
        said(6, "later"),
        back(7, 1, 6, "cyd", checkpointId="c1"),
    ]
    assert texts(events) == ["a", "waited"]
    assert texts(events[:5], 1, 3) == ["a", "waited"]


@given(
    st.lists(
        st.one_of(
            st.just(None),
            st.tuples(st.integers(0, 12), st.integers(0, 12), st.sampled_from("ab")),
        ),
        max_size=12,
    )
)
def test_live_events_are_some_of_the_events_in_order(steps: list[Any]) -> None:
    events = [
        said(seq, str(seq)) if step is None else back(seq, step[0], step[1], step[2])
        for seq, step in enumerate(steps, 1)
    ]
    live = live_events(events)
    assert live == sorted(set(live))
    assert all(events[place].type == "said" for place in live)
    # One more rollback to the end changes nothing.
    assert live_events([*events, back(len(events) + 1, len(events), len(events))]) == live


# Forks.


@settings(max_examples=40)
@given(st.dictionaries(st.tuples(st.just("notes"), NAMES), records(), max_size=4))
def test_the_layers_of_a_fork_give_every_value_its_own_time(state: dict[Key, Record]) -> None:
    fields: dict[Key, dict[str, Any]] = {}
    times: dict[Key, dict[str, int]] = {}
    newest: dict[Key, int] = {}
    for number, ops in enumerate(fork_layers(state)):
        assert len({layer.key for layer in ops}) == len(ops)
        for layer in ops:
            assert layer.whole == (number == 0)
            assert layer.at > newest.get(layer.key, -1)
            newest[layer.key] = layer.at
            fields.setdefault(layer.key, {}).update(layer.fields)
            times.setdefault(layer.key, {}).update(dict.fromkeys(layer.fields, layer.at))
    alive = {key: record for key, record in state.items() if record.alive}
    assert fields.keys() == alive.keys()
    for key, record in alive.items():
        assert same(fields[key], record.fields)
        assert times[key] == {name: at.updated_at for name, at in record.stamps.items()}


def test_layers_are_cut_into_parts_that_fit() -> None:
    record = Record({"text": "x" * 100}, {"text": STAMP}, None, True, STAMP, {})
    (layers,) = fork_layers({("notes", str(i)): record for i in range(10)})
    parts = list(in_parts(layers, bytes_max=600, changes_max=100))
    assert [layer for part in parts for layer in part] == layers
    assert [len(part) for part in parts] == [3, 3, 3, 1]
    assert [len(p) for p in in_parts(layers, bytes_max=1, changes_max=5)] == [1] * 10
    assert [len(p) for p in in_parts(layers, bytes_max=1 << 20, changes_max=4)] == [4, 4, 2]
    assert list(in_parts([], bytes_max=1, changes_max=1)) == []
    with pytest.raises(InvalidValue):
        list(in_parts(layers, bytes_max=0, changes_max=1))
