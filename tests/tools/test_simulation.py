"""The deterministic world itself: same seed, same world; faults that strike; promises that hold."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from syncline.cli.__main__ import main
from syncline.testing import FAULTS, Options, World, play, run

QUICK_SEEDS = 60
FORCED = Options(force=("restore", "clone"))

PINNED = [
    # (seed, options, what it once broke)
    (1192, Options(), "a record kept its base when an own op settled before an earlier one"),
    (15, Options(), "a copy and its original both gave a restored server the same op"),
    (89, Options(), "a copy and its original both gave a restored server the same op"),
    (52, Options(), "a write was lost when a server and a replica were both restored"),
    (200_180, FORCED, "a replica that a copy had displaced counted as one that needs nothing more"),
    (200_348, FORCED, "a replica that a copy had displaced counted as one that needs nothing more"),
]
"""Worlds that once broke a promise. They stay."""


@pytest.mark.parametrize(("seed", "options", "_was"), PINNED)
def test_a_world_that_once_broke_a_promise_keeps_them_all(
    seed: int, options: Options, _was: str
) -> None:
    assert [str(violation) for violation in play(seed, options).violations] == []


def test_the_same_seed_is_the_same_world() -> None:
    first, second = play(7, Options()), play(7, Options())
    assert first.trace == second.trace
    assert (first.steps, first.ops, first.entries) == (second.steps, second.ops, second.entries)
    assert play(8, Options()).trace != first.trace


def test_many_worlds_with_mixed_faults_keep_every_promise() -> None:
    campaign = run(range(10_000, 10_000 + QUICK_SEEDS), Options())
    assert [failure.replay for failure in campaign.failures] == []
    assert campaign.seeds == QUICK_SEEDS
    assert campaign.ops > 20 * QUICK_SEEDS
    assert campaign.entries > 15 * QUICK_SEEDS


def test_every_kind_of_fault_strikes_and_changes_something() -> None:
    struck: Counter[str] = Counter()
    for place, kind in enumerate(FAULTS):
        for seed in range(place * 100, place * 100 + 12):
            result = play(seed, Options(faults=(kind,)))
            assert [str(violation) for violation in result.violations] == []
            struck[kind] += result.faults.total()
            if struck[kind]:
                break
    assert [kind for kind in FAULTS if not struck[kind]] == []


def test_a_world_without_faults_has_none() -> None:
    world = World(3, Options(faults=()))
    result = world.run()
    assert (result.violations, result.faults) == ([], Counter())
    assert result.entries > 0


def test_a_broken_promise_is_told_with_the_line_that_plays_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checker with an opinion of its own makes every world with a delete a broken one."""
    from syncline.testing import Violation, _checkers

    def no_entries(entries: list[object]) -> list[Violation]:
        return [Violation("atomic", "there is an entry")] if entries else []

    monkeypatch.setattr(_checkers, "check_atomic_events", no_entries)
    assert main(["simulate", "--seeds", "1", "--first", "3", "--processes", "1"]) == 1
    out = capsys.readouterr().out
    assert "seed 3: atomic: there is an entry" in out
    assert "again: syncline simulate --replay 3 " in out
    assert "--devices 1" in out  # It was made as small as it gets.
    assert "PROMISES WERE BROKEN" in out


def test_simulate_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--seeds", "3", "--json", "--processes", "1"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert sorted(told) == [
        "faults", "ops", "seconds", "seeds", "steps", "violations", "virtual_hours",
    ]  # fmt: skip
    assert (told["seeds"], told["violations"]) == (3, [])


def test_an_unknown_kind_of_fault_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--faults", "cut,gremlins"]) == 2
    assert "'gremlins' is no kind of fault" in capsys.readouterr().err


@pytest.mark.long
def test_a_campaign_with_restores_and_copies_in_every_world() -> None:
    campaign = run(range(100_000, 105_000), Options(force=("restore", "clone")))
    assert [failure.replay for failure in campaign.failures] == []
