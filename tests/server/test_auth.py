"""Tokens: whose they are, what they open, and what is wrong with a file of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from syncline.server import ANONYMOUS, Principal, Tokens
from syncline.sync import LocalError, NotFound


def written(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "tokens.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_token_of_the_file_names_its_principal_and_sessions(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {
            "secret-a": {"name": "alice", "sessions": ["*"]},
            "secret-b": {"name": "bob", "sessions": ["s1", "s2"]},
        },
    )
    tokens = Tokens.load(path)
    assert tokens.who("secret-a") == Principal("alice", frozenset({"*"}))
    assert tokens.who("secret-b") == Principal("bob", frozenset({"s1", "s2"}))
    assert [tokens.who(token) for token in ("secret", "secret-a ", "", None, "\udc80")] == [
        None
    ] * 5


def test_a_single_token_opens_everything() -> None:
    owner = Tokens.single("t").who("t")
    assert owner is not None and owner.may_open("anything")
    assert Tokens.single("t").who("u") is None


def test_an_empty_single_token_is_refused() -> None:
    with pytest.raises(LocalError, match="empty"):
        Tokens.single("")


def test_a_principal_opens_what_is_listed_and_anonymous_opens_all() -> None:
    bob = Principal("bob", frozenset({"s1"}))
    assert [bob.may_open(session) for session in ("s1", "s2", "*")] == [True, False, False]
    assert ANONYMOUS.may_open("s9")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "must be a JSON object with at least one token"),
        ("{}", "must be a JSON object with at least one token"),
        ('{"a": {"name": "x", "sessions": ["*"]}, "a": 1}', "names a token or a key twice"),
        ({"": {"name": "x", "sessions": []}}, "must have 1 to 4096 characters"),
        ({"tok": {"name": "", "sessions": []}}, "must have the form"),
        ({"tok": {"name": "x"}}, "must have the form"),
        ({"tok": {"name": "x", "sessions": "*"}}, "must have the form"),
        ({"tok": {"name": "x", "sessions": [], "admin": True}}, "must have the form"),
        ({"tok": {"name": "x", "sessions": ["a b"]}}, "'a b' is neither a session id nor"),
        ({"tok": {"name": "x", "sessions": [3]}}, "3 is neither a session id nor"),
    ],
)
def test_a_broken_token_file_is_an_error_that_names_file_and_problem(
    tmp_path: Path, content: object, problem: str
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(LocalError) as caught:
        Tokens.load(path)
    assert str(path) in str(caught.value) and problem in str(caught.value)


def test_an_error_shows_only_the_beginning_of_a_token(tmp_path: Path) -> None:
    with pytest.raises(LocalError) as caught:
        Tokens.load(written(tmp_path, {"supersecret": 1}))
    assert "'sup'" in str(caught.value) and "supersecret" not in str(caught.value)


def test_a_token_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no token file"):
        Tokens.load(tmp_path / "none.json")
    with pytest.raises(LocalError, match="cannot be read"):
        Tokens.load(tmp_path)


def test_a_token_file_that_never_ends_is_not_read_to_its_end() -> None:
    with pytest.raises(LocalError, match="longer than"):
        Tokens.load("/dev/zero")
