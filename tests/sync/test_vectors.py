"""Version vectors: the laws of their order, and what is refused as one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from tests.sync.strategies import VECTORS

from syncline.sync import (
    VECTOR_CLIENTS_MAX,
    InvalidValue,
    Order,
    VersionVector,
    clip,
    compare,
    covers,
    increment,
    merge,
    pack,
    serialise,
    validate,
)

OPPOSITE = {
    Order.EQUAL: Order.EQUAL,
    Order.BEFORE: Order.AFTER,
    Order.AFTER: Order.BEFORE,
    Order.CONCURRENT: Order.CONCURRENT,
}


@given(VECTORS, VECTORS, VECTORS)
def test_VA8_merge_is_the_least_vector_that_covers_both(
    a: VersionVector, b: VersionVector, c: VersionVector
) -> None:
    joined = merge(a, b)
    assert covers(joined, a) and covers(joined, b)
    assert covers(c, joined) is (covers(c, a) and covers(c, b))
    assert joined == merge(b, a)
    assert merge(joined, c) == merge(a, merge(b, c))
    assert merge(a, a) == a
    assert merge(a, {}) == a


@given(VECTORS, VECTORS, VECTORS)
def test_VA8_clip_is_the_largest_vector_that_both_cover(
    a: VersionVector, b: VersionVector, c: VersionVector
) -> None:
    met = clip(a, b)
    assert covers(a, met) and covers(b, met)
    assert covers(met, c) is (covers(a, c) and covers(b, c))
    assert met == clip(b, a)
    assert clip(a, merge(a, b)) == a
    assert merge(a, met) == a


@given(VECTORS, VECTORS, VECTORS)
def test_VA8_compare_is_a_partial_order(
    a: VersionVector, b: VersionVector, c: VersionVector
) -> None:
    assert compare(a, b) is OPPOSITE[compare(b, a)]
    assert (compare(a, b) is Order.EQUAL) is (a == b)
    assert compare(merge(a, b), a) in (Order.AFTER, Order.EQUAL)
    if covers(a, b) and covers(b, c):
        assert covers(a, c)


@given(VECTORS)
def test_VA8_an_increment_is_one_op_later_and_leaves_the_vector_alone(a: VersionVector) -> None:
    before = dict(a)
    later = increment(a, "ann")
    assert compare(later, a) is Order.AFTER
    assert later["ann"] == a.get("ann", 0) + 1
    assert {k: n for k, n in later.items() if k != "ann"} == {
        k: n for k, n in a.items() if k != "ann"
    }
    assert a == before


@given(VECTORS)
def test_VA8_the_canonical_form_does_not_depend_on_the_order_of_making(a: VersionVector) -> None:
    backwards = dict(reversed(list(a.items())))
    assert pack(serialise(backwards)) == pack(serialise(a))
    assert list(serialise(a)) == sorted(a)
    assert validate(serialise(a)) == a


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "must be a map, not NoneType"),
        ([], "must be a map, not list"),
        ({"": 1}, "client id in a version vector '' is not an id"),
        ({"a b": 1}, "client id in a version vector 'a b' is not an id"),
        ({b"a": 1}, "is not an id"),
        ({3: 1}, "is not an id"),
        ({"a" * 65: 1}, "is not an id"),
        ({"ann": 0}, "the number of ann in a version vector must be 1 to 2**63-1"),
        ({"ann": -1}, "the number of ann"),
        ({"ann": 2**63}, "the number of ann"),
        ({"ann": True}, "the number of ann"),
        ({"ann": 1.0}, "the number of ann"),
        ({"ann": None}, "the number of ann"),
        ({f"c{i}": 1 for i in range(VECTOR_CLIENTS_MAX + 1)}, "names at most 4096 clients"),
    ],
)
def test_VA8_what_is_no_vector_is_refused_by_name(value: Any, problem: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        validate(value)
    assert problem in caught.value.reason
    assert caught.value.code == 3019


def test_VA8_a_vector_of_the_most_clients_and_the_largest_number_is_taken() -> None:
    largest = {f"c{i}": 2**63 - 1 for i in range(VECTOR_CLIENTS_MAX)}
    assert validate(largest) == largest
