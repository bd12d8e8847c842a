"""C014: the reply was lost, and the same mutation arrives again, seconds or weeks later."""

from __future__ import annotations

import signal
from collections.abc import Iterable

import pytest

from syncline.client import Notification
from syncline.sync import Entries, Entry, OpRefused

from .crashing import Crasher
from .hand import Hand, codes, make_op, put
from .proxy import Cut, Message, Proxy, Way
from .support import SECOND, SESSION, World, eventually, now_us, query

LOSSES = 5


def _lose_replies(proxy: Proxy, times: int) -> list[int]:
    """Break the connection in place of the first so many replies; the list counts them."""
    lost: list[int] = []

    def lose(message: Message) -> Iterable[bytes]:
        if isinstance(message.frame(), Entries | OpRefused) and len(lost) < times:
            lost.append(message.connection)
            raise Cut
        return [message.raw]

    proxy.filter(Way.TO_CLIENT, lose)
    return lost


def test_C014_a_reply_lost_five_times_leaves_each_op_in_the_log_once(world: World) -> None:
    server = world.start()
    a = world.session("a")
    told: list[Notification] = []
    a.watch(told.append)
    m1 = a.put("notes", "r", {"v": 1})
    m2 = a.append("log", {"line": 1})
    with Proxy(server.port) as proxy:
        lost = _lose_replies(proxy, LOSSES)
        with world.replica("a").connect(proxy.url) as connection:
            eventually(lambda: len(lost) == LOSSES, 20, each=connection.poke)
            assert m2.wait(10).value == m1.wait(10).value == "applied"
    assert [entry.n for entry in world.log()] == [1, 2]
    assert [event.payload for event in a.events()] == [{"line": 1}]
    assert {n.origin for n in told} == {"local"}
    assert a.conflicts() == []
    world.check()


def test_C014_the_same_op_on_two_sockets_is_settled_once(world: World) -> None:
    world.start()
    op = make_op(1, put("r", v=1), at=now_us())
    with Hand(world.url, incarnation=1) as one:
        one.open()
        first = one.push(op)
        with Hand(world.url, incarnation=2) as two:
            two.open()
            assert codes(two.push(op)) == [0]
    assert [item.seq for item in first if isinstance(item, Entry)] == [1]
    assert len(world.log()) == 1
    world.check()


def test_C014_a_client_killed_before_its_outbox_retires_sends_nothing_twice(world: World) -> None:
    """SIGKILL after the reply was received, before anything of it is stored."""
    world.start()
    path = world.add(world.folder / "a.db")
    with Crasher() as crasher:
        assert crasher.run("write", path, seed=1).killed_by == 0
        for _ in range(3):
            life = crasher.run("sync", path, url=world.url, at_call="apply_entries")
            assert life.killed_by == signal.SIGKILL
            assert query(path, "SELECT count(*) FROM syncline_outbox") == [(4,)]
        assert crasher.run("sync", path, url=world.url).told == ["synced"]
    assert [entry.n for entry in world.log()] == [1, 2, 3, 4]
    world.check()


def test_C014_a_repeat_after_thirty_days_and_restarts_gets_the_first_answer(world: World) -> None:
    server = world.start()
    ahead = [0]
    a = world.session("a", clock=lambda: now_us() + ahead[0])
    receipts = [a.put("notes", f"r{i}", {"i": i}) for i in range(3)]
    with Proxy(server.port) as proxy:
        lost = _lose_replies(proxy, 1_000)
        with world.replica("a").connect(proxy.url):
            eventually(lambda: lost)
    assert len(world.log()) == 3
    assert {receipt.state.value for receipt in receipts} == {"sent"}
    for _ in range(3):
        world.stop()
        world.start()
        world.session("b").put("notes", "other", {})
        world.sync("b")
    ahead[0] = 30 * 86_400 * SECOND
    world.close("a")
    a = world.session("a", clock=lambda: now_us() + ahead[0])
    world.sync("a")
    assert [entry.n for entry in world.log() if entry.client == "a"] == [1, 2, 3]
    assert {world.replica("a").receipt(r.id).state.value for r in receipts} == {"applied"}
    world.sync("b")
    world.check()


@pytest.mark.parametrize("stamp_moved", [False, True])
def test_C014_the_same_number_with_other_content_is_an_error_that_is_shown(
    world: World, stamp_moved: bool
) -> None:
    world.start()
    at = now_us()
    with Hand(world.url) as hand:
        hand.open()
        hand.push(make_op(1, put("r", v=1), at=at))
        (said,) = hand.push(make_op(1, put("r", v=2), at=at + stamp_moved))
        assert isinstance(said, OpRefused)
        assert (said.code, said.final, said.entry) == (3006, False, None)
        assert "another op" in said.reason
    assert len(world.log()) == 1
    world.check()
    assert world.seqs() == {SESSION: [1]}
