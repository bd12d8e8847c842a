"""Strategies: records as the user's models say, histories that play, clocks, fault schedules."""

from __future__ import annotations

import datetime
import enum
import uuid
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, model_validator

from syncline.client import Replica
from syncline.sync import Value, check_fields
from syncline.testing import FAULTS, History, Options, Sync, Write, play, play_history
from syncline.testing.strategies import (
    WrongClock,
    clocks,
    histories,
    names,
    records,
    schedules,
    values,
)

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Tag(BaseModel):
    label: str = Field(min_length=1, max_length=5)
    inner: list[Tag] = []


class Everything(BaseModel):
    title: str
    code: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
    serves: int = Field(ge=1, le=20)
    score: float | None = None
    when: datetime.date
    key: uuid.UUID
    colour: Colour
    kind: Literal["soup", "cake"]
    tags: list[Tag] = Field(max_length=3)
    by_name: dict[str, Tag] = {}
    raw: bytes = b""


class Between(BaseModel):
    low: int = Field(ge=0, le=9)
    high: int = Field(ge=0, le=9)

    @model_validator(mode="after")
    def _in_order(self) -> Between:
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


@QUICK
@given(records(Everything))
def test_records_of_a_model_are_what_the_model_takes_and_a_field_holds(
    fields: dict[str, Value],
) -> None:
    check_fields(fields)
    assert fields.keys() == Everything.model_fields.keys()
    Everything.model_validate(fields)


@QUICK
@given(records(Between))
def test_a_model_that_checks_its_fields_together_is_obeyed(fields: dict[str, Value]) -> None:
    assert fields["low"] <= fields["high"]


@QUICK
@given(records(Between, low=st.just(3)), records(st.just(Between(low=1, high=2))))
def test_fields_and_whole_models_may_come_from_the_users_own_strategies(
    drawn: dict[str, Value], fixed: dict[str, Value]
) -> None:
    assert drawn["low"] == 3
    assert fixed == {"low": 1, "high": 2}


def test_a_field_that_the_model_does_not_have_is_named() -> None:
    with pytest.raises(TypeError, match="Between has no field middle"):
        records(Between, middle=st.just(1))


@QUICK
@given(records(), values(), names())
def test_without_a_model_anything_that_a_field_may_hold_comes(
    fields: dict[str, Value], value: Value, name: str
) -> None:
    check_fields({**fields, name: value})


@QUICK
@given(histories(Between, collection="spans"))
def test_every_history_plays_to_one_state_with_every_promise_kept(history: History) -> None:
    played = play_history(history)
    assert played.violations == ()
    assert len(played.entries) == len(history.writes)
    assert set(played.records_by_device) == set(history.devices)


def test_histories_have_what_makes_syncing_hard() -> None:
    seen: set[str] = set()

    @settings(QUICK, max_examples=60, derandomize=True, database=None)
    @given(histories(Between))
    def look(history: History) -> None:
        writes = history.writes
        stamps = {(write.device, stamp) for write in writes for stamp in write.stamps}
        if len(stamps) > len({stamp for _, stamp in stamps}):
            seen.add("equal stamps")
        if [type(step) for step in history.steps[:3]] == [Write, Sync, Write]:
            seen.add("a sync between")
        seen.update(type(change).__name__ for write in writes for change in write.changes)
        if play_history(history).conflicts:
            seen.add("conflicts")

    look()
    assert seen == {
        "Delete", "Event", "Patch", "Put", "a sync between", "conflicts", "equal stamps",
    }  # fmt: skip


@QUICK
@given(clocks())
def test_a_wrong_clock_stays_a_clock_that_a_replica_takes(clock: WrongClock) -> None:
    assert all(clock() >= 1 for _ in range(60))


def test_a_wrong_clock_reaches_a_replica(tmp_path: Path) -> None:
    clock = WrongClock(start_us=5_000, tick_us=0, jumps={})
    with Replica(tmp_path / "ann.db", clock=clock) as replica:
        replica.session("s").append("said", {})
        (event,) = replica.session("s").events()
    assert event.at == 5_000


@settings(max_examples=3, deadline=None)
@given(schedules(("crash", "cut"), writes_max=8), st.integers(0, 100))
def test_a_schedule_is_a_world_that_plays(options: Options, seed: int) -> None:
    assert set(options.faults or ()) <= {"crash", "cut"} <= set(FAULTS)
    assert play(seed, options).violations == []
