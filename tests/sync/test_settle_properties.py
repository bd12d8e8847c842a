"""Settling against a model, over generated histories: any authors, clocks, knowledge and order."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.sync.settling_model import (
    RECORDS,
    STEPS,
    Log,
    causal,
    closed,
    history,
    interleaved,
    settled,
    unlisted,
    writes_of,
)

from syncline.sync import LIFE, Record, compare, covers, fold, resolve_conflicts
from syncline.sync import Order as VectorOrder

ORDER = st.lists(st.integers(0, 5), max_size=12)
PICKS = st.lists(st.integers(0, 11), max_size=4)


@given(STEPS, ORDER)
def test_R1_2_ST3_the_larger_stamp_wins_in_any_arrival_order(
    steps: list[Any], order: list[int]
) -> None:
    ops = history(steps)
    log = Log.of(interleaved(ops, order))
    for record_id in RECORDS:
        assert log.records.get(record_id) == settled(writes_of(ops, record_id))


@given(STEPS, ORDER)
def test_ST8_no_value_is_lost_in_silence_in_any_arrival_order(
    steps: list[Any], order: list[int]
) -> None:
    ops = history(steps)
    for arrival in (interleaved(ops, order), causal(ops, order)):
        log = Log.of(arrival)
        for record_id in log.records:
            assert unlisted(writes_of(ops, record_id), log.lost[record_id]) == []


@given(STEPS, ORDER)
def test_ST7_no_write_loses_to_one_that_its_author_had_seen(
    steps: list[Any], order: list[int]
) -> None:
    ops = history(steps)
    for arrival in (interleaved(ops, order), causal(ops, order)):
        log = Log.of(arrival)
        for record_id, lost in log.lost.items():
            by_stamp = {write.stamp: write for write in writes_of(ops, record_id)}
            for one in lost:
                loser, winner = by_stamp[one.loser], by_stamp[one.winner]
                assert not loser.saw(winner)
                assert one.loser < one.winner


@given(STEPS, ORDER)
def test_ST9_what_is_listed_was_unseen_by_its_winner_when_causes_arrive_first(
    steps: list[Any], order: list[int]
) -> None:
    ops = history(steps)
    log = Log.of(causal(ops, order))
    for record_id, lost in log.lost.items():
        by_stamp = {write.stamp: write for write in writes_of(ops, record_id)}
        for one in lost:
            assert not by_stamp[one.winner].saw(by_stamp[one.loser])


@given(STEPS, ORDER)
def test_WR1_a_stamp_set_by_the_rule_is_never_stale_in_any_arrival_order(
    steps: list[Any], order: list[int]
) -> None:
    ops = history(steps)
    for op in ops:
        for record_id, write in op.writes.items():
            for earlier in writes_of(ops, record_id, op.seen):
                assert write.stamp > earlier.stamp
    Log.of(interleaved(ops, order))  # StaleStamp would come out of here


@given(STEPS)
def test_WR2_the_context_is_the_vector_of_the_record_that_the_author_saw(steps: list[Any]) -> None:
    ops = history(steps)
    for op in ops:
        replica = Log.of(other for other in ops if other.dot in op.seen)
        for record_id, write in op.writes.items():
            record = replica.records.get(record_id)
            assert write.change(record_id).context == ({} if record is None else record.vector)


@given(STEPS, ORDER)
def test_ST12_no_vector_claims_an_op_that_has_not_arrived(
    steps: list[Any], order: list[int]
) -> None:
    log = Log.of([])
    for op in interleaved(history(steps), order):
        log.add(op)
        for record in log.records.values():
            assert covers(log.held, record.vector)


@given(STEPS, ORDER)
def test_ST14_folding_effects_alone_gives_the_state_that_settling_gave(
    steps: list[Any], order: list[int]
) -> None:
    ops = interleaved(history(steps), order)
    server = Log.of([])
    replica: dict[str, Record] = {}
    for op in ops:
        for record_id, effect in server.add(op).items():
            write = op.writes[record_id]
            change = write.change(record_id)
            replica[record_id] = fold(replica.get(record_id), change, write.stamp, effect)
    assert {name: one.encode() for name, one in replica.items()} == {
        name: one.encode() for name, one in server.records.items()
    }


def _states(steps: list[Any], *picks: list[int]) -> list[tuple[Record, ...]]:
    """Per record the states that replicas with these causally closed parts of a history have."""
    ops = history(steps)
    parts = [closed(ops, pick) for pick in picks]
    found = []
    for record_id in RECORDS:
        states = [settled(writes_of(ops, record_id, part)) for part in parts]
        whole = settled(writes_of(ops, record_id, frozenset().union(*parts)))
        if whole is not None and None not in states:
            found.append((*(state for state in states if state is not None), whole))
    return found


@given(STEPS, PICKS, PICKS)
def test_ST11_joining_two_states_is_settling_the_ops_of_both(
    steps: list[Any], left: list[int], right: list[int]
) -> None:
    for mine, theirs, whole in _states(steps, left, right):
        one = resolve_conflicts(mine, theirs)
        other = resolve_conflicts(theirs, mine)
        assert one.record == whole
        assert (one.record, one.concurrent, sorted(one.lost, key=repr)) == (
            other.record,
            other.concurrent,
            sorted(other.lost, key=repr),
        )
        concurrent = compare(mine.vector, theirs.vector) is VectorOrder.CONCURRENT
        assert one.concurrent is concurrent


@given(STEPS, PICKS, PICKS)
def test_ST8_joining_two_states_loses_no_value_in_silence(
    steps: list[Any], left: list[int], right: list[int]
) -> None:
    ops = history(steps)
    parts = closed(ops, left), closed(ops, right)
    for record_id in RECORDS:
        states = [settled(writes_of(ops, record_id, part)) for part in parts]
        if states[0] is None or states[1] is None:
            continue
        resolution = resolve_conflicts(states[0], states[1])
        both = parts[0] & parts[1]
        assert not [one for one in resolution.lost if (one.loser.client, one.loser.n) in both]
        joined, listed = resolution.record, {(one.field, one.loser) for one in resolution.lost}
        for state, other in ((states[0], parts[1]), (states[1], parts[0])):
            unseen = {n: at for n, at in state.stamps.items() if (at.client, at.n) not in other}
            for name, at in unseen.items():
                gone = name not in joined.fields or joined.fields[name] != state.fields[name]
                assert not gone or (name, at) in listed
            if state.alive and not joined.alive and unseen:
                assert LIFE in {field for field, _ in listed}


@given(STEPS, PICKS, PICKS, PICKS)
def test_ST11_joining_states_is_associative_and_idempotent(
    steps: list[Any], a: list[int], b: list[int], c: list[int]
) -> None:
    for first, second, third, whole in _states(steps, a, b, c):
        left = resolve_conflicts(resolve_conflicts(first, second).record, third).record
        right = resolve_conflicts(first, resolve_conflicts(second, third).record).record
        assert left == right == whole
        again = resolve_conflicts(first, first)
        assert (again.record, again.concurrent, again.lost) == (first, False, ())
