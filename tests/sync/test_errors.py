"""The error tree: stable numbers, and sentences that say what to do."""

from __future__ import annotations

import re

import pytest

import syncline.sync as core
from syncline.sync import (
    CONFLICT_SETTLED,
    REFUSALS,
    Busy,
    Gap,
    LocalError,
    ProtocolError,
    Refused,
    StaleStamp,
    SyncError,
    refusal,
)

ERRORS = [
    cls
    for name in core.__all__
    if isinstance(cls := getattr(core, name), type) and issubclass(cls, SyncError)
]
LEAVES = [cls for cls in ERRORS if not any(cls in other.__mro__[1:] for other in ERRORS)]
FINAL = {3001, 3002, 3011, 3013, 3014, 3019, 3021}


def test_RE1_the_numbers_that_are_final_are_those_and_no_others() -> None:
    assert {code for code, cls in REFUSALS.items() if cls.final} == FINAL
    assert sorted(REFUSALS) == [
        *(3001, 3002, 3003, 3005, 3006, 3007, 3008, 3009, 3011, 3012, 3013),
        *(3014, 3015, 3016, 3017, 3018, 3019, 3020, 3021),
    ]


@pytest.mark.parametrize("cls", LEAVES, ids=lambda cls: cls.__name__)
def test_RE1_every_error_has_a_number_a_name_and_advice(cls: type[SyncError]) -> None:
    error = cls("this went wrong", path="f")
    assert str(error) == f"this went wrong [{cls.code} {cls.name}]. {cls.advice}"
    assert error.detail == {"path": "f"}
    assert cls.name and cls.advice and not cls.advice.endswith(".")


def test_RE1_no_two_errors_share_a_number_but_a_malformed_frame_and_op() -> None:
    codes = [cls.code for cls in LEAVES]
    assert {code for code in codes if codes.count(code) > 1} == {3001}
    assert CONFLICT_SETTLED == 3004 and 3004 not in codes


def test_RE1_the_tree_drawn_in_the_module_is_the_tree() -> None:
    drawn = re.findall(r"├── (\w+)|└── (\w+)", core.SyncError.__init__.__globals__["__doc__"])
    names = {first or second for first, second in drawn}
    assert names == {cls.__name__ for cls in ERRORS} - {"SyncError"}


@pytest.mark.parametrize("code", sorted(REFUSALS))
def test_RE2_a_refusal_comes_back_from_its_number(code: int) -> None:
    error = refusal(code, "reason", {"n": 1})
    assert type(error) is REFUSALS[code]
    assert (error.reason, error.detail) == ("reason", {"n": 1})


@pytest.mark.parametrize("code", [0, 3000, 3004, 3010, 3022, 3099, 3101, -1])
def test_RE2_a_number_that_is_not_known_is_busy_and_drops_nothing(code: int) -> None:
    error = refusal(code, "from a newer server")
    assert type(error) is Busy
    assert not error.final


def test_R1_4_RE3_what_travels_is_below_3100_and_what_is_local_is_not() -> None:
    for cls in LEAVES:
        assert 3001 <= cls.code <= 3999
        assert issubclass(cls, LocalError) is (cls.code >= 3100)
        assert issubclass(cls, Refused | ProtocolError | LocalError)


def test_a_detail_is_data_and_not_text() -> None:
    assert Gap("3 comes next", expected=3).detail["expected"] == 3
    assert StaleStamp("stale", updated_at=1, seen=2).detail == {"updated_at": 1, "seen": 2}
