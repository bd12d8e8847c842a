"""docs/protocol.md tells the truth: its test vectors, its frames and its refusals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from syncline.sync import (
    NO_HASH,
    REFUSALS,
    Dot,
    Effect,
    Entry,
    Lost,
    Op,
    Outcome,
    Patch,
    Put,
    Record,
    Stamp,
    ToClient,
    ToServer,
    UnknownVersion,
    conflict_id,
    decode_body,
    decode_op,
    encode_body,
    encode_effects,
    encode_op,
    genesis,
    op_digest,
    running_hash,
)

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")

SALT = bytes(range(16))
AT = 1_700_000_000_000_000
LOSER, WINNER = Stamp(1, "bob", 8), Stamp(AT + 1, "ann", 2)
BODY = encode_body(
    [
        Put("notes", "a", {}, {"title": "x", "n": 1}),
        Patch("notes", "b", {"ann": 1, "bob": 7}, {"é": -1.5}),
    ]
)
OP = Op(2, SALT, (AT, AT + 1), BODY, Dot("old", 9))
EFFECT = Effect(
    Outcome.WON,
    {"é": -1.5},
    ("gone",),
    False,
    None,
    {"ann": 2, "bob": 8},
    (Lost("é", 5, LOSER, WINNER),),
)
EFFECTS = encode_effects(OP.stamps, [None, EFFECT])
ENTRY = Entry(1, 1, "ann", 2, Outcome.WON, AT + 2, SALT, EFFECTS, BODY)
STATE = Record(
    {"b": {"z": 1, "a": [None, True]}, "a": b"\0"},
    {"b": Stamp(5, "ann", 2), "a": Stamp(4, "bob", 1)},
    Stamp(4, "bob", 1),
    True,
    Stamp(5, "ann", 2),
    {"bob": 1, "ann": 2},
)

VECTORS = {
    "body": BODY.hex(),
    "op": encode_op(OP).hex(),
    "op digest": op_digest(SALT, BODY).hex(),
    "running hash": running_hash(NO_HASH, 2, op_digest(SALT, BODY)).hex(),
    "genesis": genesis("store", 1, "s1").hex(),
    "effects": EFFECTS.hex(),
    "entry hash": ENTRY.hash(genesis("store", 1, "s1")).hex(),
    "conflict id": conflict_id(LOSER, "notes", "b", "é"),
    "state": STATE.encode().hex(),
}


def table(head: str) -> list[list[str]]:
    """The rows of the table with this head, as cells."""
    below = PAGE.split(head, 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in below]


def test_CH1_CH2_CH3_CH4_the_test_vectors_of_the_page_are_what_the_core_computes() -> None:
    shown = {row[0]: row[-1].strip("`") for row in table("| what | of | is |")}
    assert shown == VECTORS


def test_FR6_FR7_FR8_the_test_vectors_read_back() -> None:
    assert decode_op(bytes.fromhex(VECTORS["op"])) == OP
    assert encode_body(decode_body(BODY)) == BODY
    assert [accepted.effect for accepted in ENTRY.read()] == [None, EFFECT]
    assert Record.decode(bytes.fromhex(VECTORS["state"])) == STATE


@pytest.mark.parametrize(
    ("head", "union"),
    [("| to the server | keys |", ToServer), ("| to the client | keys |", ToClient)],
)
def test_FR1_the_page_lists_every_frame_with_its_keys(head: str, union: Any) -> None:
    shown = {row[0].strip("`"): re.findall(r"(?:^|, )`(\w+)`(\??) ", row[1]) for row in table(head)}
    frames = {cls.model_fields["type"].default: cls.model_fields for cls in get_args(union)}
    assert shown == {
        type_: [
            (name, "" if field.is_required() else "?")
            for name, field in fields.items()
            if name != "type"
        ]
        for type_, fields in frames.items()
    }


def test_RE1_the_page_lists_every_refusal() -> None:
    shown = {(int(row[0]), row[1], row[2] == "yes") for row in table("| no. | name | final |")}
    known = {(code, cls.name, cls.final) for code, cls in REFUSALS.items()}
    assert shown == known | {(UnknownVersion.code, UnknownVersion.name, False)}
