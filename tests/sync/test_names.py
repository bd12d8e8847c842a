"""Ids and names: what is taken, and that what is refused is named."""

from __future__ import annotations

import pytest

from syncline.sync import (
    InvalidValue,
    check_collection,
    check_id,
    check_name,
    check_record_id,
    is_id,
)


@pytest.mark.parametrize(
    "value", ["a", "0", "Z9_-", "a" * 64, "0190b6f2-7c1a-7def-8000-000000000000"]
)
def test_VA5_an_id_is_1_to_64_letters_digits_underscores_and_dashes(value: str) -> None:
    assert is_id(value)
    assert check_id(value, "session id") == value


@pytest.mark.parametrize(
    "value", ["", "a" * 65, "_a", "-a", "a b", "a\n", "é", "a/b", "a.b", "a\x00", b"a", None, 1]
)
def test_VA5_anything_else_is_no_id(value: object) -> None:
    assert not is_id(value)
    with pytest.raises(InvalidValue, match="^session id .* is not an id: 1 to 64 letters"):
        check_id(value, "session id")


@pytest.mark.parametrize("value", ["a", "größe", "two words", "a" * 255, "é" * 127, "🜚", "a$"])
def test_VA5_a_name_is_text_of_1_to_255_bytes(value: str) -> None:
    assert check_name(value, "field name") == value


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "must not be empty"),
        (None, "must be text, not NoneType"),
        (b"a", "must be text, not bytes"),
        ("a" * 256, "has 256 bytes, the most is 255"),
        ("é" * 128, "has 256 bytes, the most is 255"),
        ("a\x00b", "has a control character in it"),
        ("a\n", "has a control character in it"),
        ("a\x7f", "has a control character in it"),
        ("\ud800", "is not valid Unicode"),
        ("$own", "is reserved"),
    ],
)
def test_VA5_any_other_name_is_refused_with_what_it_is(value: object, problem: str) -> None:
    for what in ("field name", "collection", "event type"):
        with pytest.raises(InvalidValue) as caught:
            check_name(value, what)
        assert caught.value.reason.startswith(what)
        assert problem in caught.value.reason


def test_VA5_record_ids_are_free_to_begin_with_a_dollar_and_take_1024_bytes() -> None:
    assert check_record_id("$header") == "$header"
    assert check_record_id("a" * 1024) == "a" * 1024
    for value in ("", "a" * 1025, "a\x00", None):
        with pytest.raises(InvalidValue, match="^record id"):
            check_record_id(value)


def test_VA5_the_one_collection_of_synclines_own_is_session() -> None:
    assert check_collection("$session") == "$session"
    assert check_collection("notes") == "notes"
    for value in ("$sessions", "$", "", None):
        with pytest.raises(InvalidValue, match="^collection"):
            check_collection(value)
