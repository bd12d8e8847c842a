"""C016: a crash between the parts of one local write keeps all of them, or none."""

from __future__ import annotations

import random
import signal

import pytest

from .crashing import Crasher, assert_holds
from .support import World


def _finish(world: World, crasher: Crasher, told: list[str]) -> None:
    """A converges without help, with B and with the server; every op is in the log once."""
    path = world.folder / "a.db"
    assert crasher.run("sync", path, url=world.url).told == ["synced"]
    world.session("b")
    world.sync("b")
    world.check()
    salts = [entry.salt.hex() for entry in world.log()]
    assert len(salts) == len(set(salts)) and set(told) <= set(salts)
    numbers = [entry.n for entry in world.log()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_C016_a_kill_at_every_statement_of_a_write_leaves_all_or_none(world: World) -> None:
    world.start()
    path = world.add(world.folder / "a.db")
    told: list[str] = []
    with Crasher() as crasher:
        statement = 0
        while True:
            life = crasher.run("write", path, seed=7, ops=3, at_statement=statement)
            told += life.told
            assert_holds(path, told)
            if not life.killed_by:
                break
            assert life.killed_by == signal.SIGKILL
            statement += 1
        assert statement > 15
        _finish(world, crasher, told)


def _random_kills(world: World, rounds: int) -> None:
    world.start()
    path = world.add(world.folder / "a.db")
    rng = random.Random(16)
    told: list[str] = []
    killed = 0
    with Crasher() as crasher:
        for seed in range(rounds):
            job = rng.choice(["write", "write", "both"])
            life = crasher.run(
                job, path, seed=seed, ops=300, url=world.url, after_s=rng.uniform(0.002, 0.1)
            )
            told += [word for word in life.told if word != "synced"]
            killed += life.killed_by == signal.SIGALRM
            assert_holds(path, told)
        assert killed > rounds // 3
        _finish(world, crasher, told)


def test_C016_kills_at_random_moments_lose_no_write_that_returned(world: World) -> None:
    _random_kills(world, 10)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_C016_five_hundred_kills_at_random_moments_lose_no_write_that_returned(
    world: World,
) -> None:
    _random_kills(world, 500)
