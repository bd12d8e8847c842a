"""C001: a device whose clock is far ahead must not win every later conflict."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from syncline.cli.__main__ import main
from syncline.server import AHEAD_US_MAX
from syncline.sync import Entry, OpRefused

from .hand import Hand, codes, make_op, put
from .support import SECOND, World, now_us

YEAR_2099 = int(datetime(2099, 1, 1, 10, tzinfo=UTC).timestamp()) * SECOND
HOUR = 3600 * SECOND
DAY = 24 * HOUR


class Clock:
    """True time, and how far this clock is from it."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead

    def __call__(self) -> int:
        return now_us() + self.ahead


@pytest.mark.parametrize(
    "ahead",
    [SECOND, 60 * SECOND, AHEAD_US_MAX, AHEAD_US_MAX + 1000, HOUR, 365 * DAY, "2099", -HOUR],
)
def test_C001_a_clock_ahead_wins_nothing_once_it_is_corrected(
    world: World, ahead: int | str
) -> None:
    clock = Clock(YEAR_2099 - now_us() if isinstance(ahead, str) else ahead)
    world.start()
    a, b = world.session("a", clock=clock), world.session("b")
    poison = a.put("notes", "r", {"v": "poison"})
    behind = [a.put("notes", f"m{i}", {"i": i}) for i in range(5)]
    world.sync("a")
    assert {receipt.state.value for receipt in (poison, *behind)} == {"applied"}

    at = now_us()
    b.put("notes", "r", {"v": "fix-1"}, updated_at=at + 10 * SECOND)
    world.sync("b")
    clock.ahead = 0
    a.put("notes", "r", {"v": "fix-2"}, updated_at=at + 60 * SECOND)
    world.settle()
    assert a.get("notes", "r") == b.get("notes", "r") == {"v": "fix-2"}
    assert dict(b.records("notes")).keys() == {"r", *(f"m{i}" for i in range(5))}
    assert max(_stamps(world)) <= now_us() + AHEAD_US_MAX
    world.check()


def test_C001_writes_of_a_corrected_clock_carry_the_true_time_before_the_next_sync(
    world: World,
) -> None:
    clock = Clock(YEAR_2099 - now_us())
    world.start()
    a, b = world.session("a", clock=clock), world.session("b")
    a.put("notes", "r", {"v": "poison"})
    world.settle()
    b.put("notes", "r", {"v": "fix-1"})
    world.sync("b")
    clock.ahead = 0
    before = now_us()
    a.put("notes", "r", {"v": "fix-2"})
    fresh = a.put("notes", "new", {"v": 1})
    world.settle()
    assert fresh.state.value == "applied"
    assert a.get("notes", "r") == b.get("notes", "r") == {"v": "fix-2"}
    assert min(_stamps(world)[-2:]) >= before
    world.check()


def test_C001_the_app_is_told_of_its_wrong_clock_and_no_age_is_absurd(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    began = now_us()
    world.start()
    a = world.session("a", clock=Clock(YEAR_2099 - now_us()))
    a.put("notes", "r", {"v": 1})
    world.sync("a")
    status = world.replica("a").status()
    assert [notice.kind for notice in status.notices] == ["stamped again"]
    assert abs(status.clock_offset_us + (YEAR_2099 - now_us())) < 5 * SECOND
    a.put("notes", "r", {"v": 2})
    oldest = world.replica("a").status().oldest_pending_at
    assert oldest is not None and began <= oldest <= now_us() + SECOND
    assert main(["status", str(world.data), "--json"]) == 0
    assert "2099" not in capsys.readouterr().out
    world.sync("a")
    world.check()


def test_C001_the_bound_is_enforced_by_the_server_to_the_microsecond(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = now_us()
    monkeypatch.setattr("syncline.server._worker.now_us", lambda: now)
    world.start()
    with Hand(world.url) as hand:
        assert hand.welcome.ahead_us_max == AHEAD_US_MAX == 60 * SECOND
        hand.open()
        (entry,) = hand.push(make_op(1, put("edge"), at=now + AHEAD_US_MAX))
        assert isinstance(entry, Entry) and entry.seq == 1
        for at in (
            now + AHEAD_US_MAX + 1,
            now + AHEAD_US_MAX + 1000,
            now + HOUR,
            now + 365 * DAY,
            YEAR_2099,
            2**63 - 2,
            2**63 - 1,
        ):
            (refused,) = hand.push(make_op(2, put("r", v="poison"), at=at))
            assert isinstance(refused, OpRefused)
            assert (refused.code, refused.final) == (3012, False)
            assert refused.detail["server_clock"] == now
        rest = [make_op(n, put(f"m{n}"), at=now) for n in range(2, 7)]
        assert [item.n for item in hand.push(*rest) if isinstance(item, Entry)] == [2, 3, 4, 5, 6]
        assert codes(hand.push(make_op(7, put("r", v="fix"), at=now))) == []
    world.session("b")
    world.settle()
    assert world.session("b").get("notes", "r") == {"v": "fix"}
    assert max(_stamps(world)) == now + AHEAD_US_MAX
    world.check()


def _stamps(world: World) -> list[int]:
    return [accepted.stamp.updated_at for entry in world.log() for accepted in entry.read()]
