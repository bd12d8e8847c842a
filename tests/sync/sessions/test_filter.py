"""Containment of metadata: the laws, and the cases that tell it from other rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sync.strategies import TEXT

from syncline.sync.sessions import contains

EXAMPLES = 50 if settings().max_examples <= 150 else settings().max_examples
SMALL = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["a", "b", 1.0, 0.5]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=EXAMPLES)
@given(SMALL)
def test_every_value_contains_itself(value: Any) -> None:
    assert contains(value, value)


@settings(max_examples=EXAMPLES)
@given(SMALL, SMALL, SMALL)
def test_containment_goes_on_through_a_third(a: Any, b: Any, c: Any) -> None:
    if contains(a, b) and contains(b, c):
        assert contains(a, c)


def less(value: Any, data: st.DataObject) -> Any:
    """The value with some of its keys and items left out, its lists in another order."""
    if isinstance(value, dict):
        return {key: less(item, data) for key, item in value.items() if data.draw(st.booleans())}
    if isinstance(value, list):
        kept = [less(item, data) for item in value if data.draw(st.booleans())]
        return data.draw(st.permutations(kept))
    return value


@settings(max_examples=EXAMPLES)
@given(SMALL, st.data())
def test_a_value_contains_whatever_is_less_of_it(value: Any, data: st.DataObject) -> None:
    assert contains(value, less(value, data))


@settings(max_examples=EXAMPLES)
@given(st.dictionaries(TEXT, SMALL, max_size=3), st.dictionaries(TEXT, SMALL, max_size=3))
def test_a_map_contains_two_filters_when_it_contains_both(
    a: dict[str, Any], b: dict[str, Any]
) -> None:
    both = {**a, **b}
    assert contains(both, b)
    assert all(contains(both, {key: value}) for key, value in both.items())


@settings(max_examples=EXAMPLES)
@given(SMALL)
def test_an_empty_filter_is_in_every_value_of_its_kind(value: Any) -> None:
    assert contains(value, {}) is isinstance(value, dict)
    assert contains(value, []) is isinstance(value, list)


@pytest.mark.parametrize(
    ("value", "wanted", "found"),
    [
        ({"customer": "cus_42", "tier": 1}, {"customer": "cus_42"}, True),
        ({"customer": "cus_42"}, {"customer": "cus_43"}, False),
        ({"customer": "cus_42"}, {"tier": None}, False),
        ({"tier": None}, {"tier": None}, True),
        ({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": {"c": 1}}}, True),
        # Matching begins at the top.
        ({"a": {"b": {"c": 1}}}, {"b": {"c": 1}}, False),
        ({"a": {"b": {"c": 1}}}, {"c": 1}, False),
        # Lists are sets: order and repeats do not count.
        ({"tags": ["x", "y", "z"]}, {"tags": ["z", "x", "x"]}, True),
        ({"tags": ["x"]}, {"tags": ["x", "y"]}, False),
        ({"tags": [{"k": 1, "v": 2}, {"k": 2}]}, {"tags": [{"v": 2}]}, True),
        # Two wishes may be met by one item.
        ({"tags": [{"k": 1, "v": 2}]}, {"tags": [{"k": 1}, {"v": 2}]}, True),
        # A list is not its item.
        ({"tags": ["x"]}, {"tags": "x"}, False),
        ({"tags": "x"}, {"tags": ["x"]}, False),
        # Numbers go by value; a bool is none.
        ({"n": 1}, {"n": 1.0}, True),
        ({"n": 1}, {"n": True}, False),
        ({"n": [1]}, {"n": [True]}, False),
        ({"n": [0]}, {"n": [0.0]}, True),
        ({"b": b"1"}, {"b": "1"}, False),
    ],
)
def test_R3_11_containment_of(value: Any, wanted: Any, found: bool) -> None:
    assert contains(value, wanted) is found
