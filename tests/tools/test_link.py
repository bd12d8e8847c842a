"""The proxy of the kit ends with nothing left over, at whatever moment it is closed."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from syncline.testing import Proxy, Way


@contextmanager
def nothing_left(proxy: Proxy) -> Iterator[None]:
    """Within it the proxy is opened and closed; no socket and no task of it outlives that."""
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        assert not proxy._thread.is_alive()
        assert asyncio.all_tasks(proxy._loop) == set()
        assert proxy._writers == set()
        gc.collect()
    assert [str(one.message) for one in caught] == []


@contextmanager
def silent(*, full: bool = False) -> Iterator[int]:
    """The port of a server that accepts nothing, as one that is suspended does not.

    The system makes connections to it, as many as it keeps in wait; then, when it is ``full``,
    openings of others stay without an answer.
    """
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0 if full else 100)
        port = listening.getsockname()[1]
        while full:
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0.2)
            try:
                waiting.connect(("127.0.0.1", port))
            except TimeoutError:
                break
            except OSError:
                pytest.skip("a full queue refuses here")
        yield port


@contextmanager
def callers(count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(socket.socket()) for _ in range(count)]


@pytest.mark.parametrize("full", [False, True], ids=["suspended", "full"])
def test_closing_leaves_nothing_of_connections_that_nobody_answered(full: bool) -> None:
    with silent(full=full) as port, callers(3) as made, nothing_left(proxy := Proxy(port)):
        with proxy:
            for caller in made:
                caller.connect(("127.0.0.1", proxy.port))
                caller.sendall(b"GET / HTTP/1.1\r\n\r\n")
            proxy.wait_connections(3)
            assert len(proxy._writers) >= 3


def test_closing_leaves_nothing_of_connections_that_were_accepted_in_the_same_moment() -> None:
    """The loop finds the call to close and all the callers at once, and takes the call first."""
    busy, go_on = threading.Event(), threading.Event()

    def hold_up() -> None:
        busy.set()
        go_on.wait(10)

    with silent() as port, callers(20) as made, nothing_left(proxy := Proxy(port)):
        with proxy:
            proxy._loop.call_soon_threadsafe(hold_up)
            assert busy.wait(10)
            for caller in made:
                caller.connect(("127.0.0.1", proxy.port))
            closing = threading.Timer(0.1, go_on.set)
            closing.start()
        closing.join()


def test_closing_leaves_nothing_of_connections_that_broke_earlier() -> None:
    with silent() as port, callers(6) as made, nothing_left(proxy := Proxy(port)):
        with proxy:
            for i, caller in enumerate(made):
                caller.connect(("127.0.0.1", proxy.port))
                proxy.wait_connections(i + 1)
                if i == 1:
                    proxy.drop()
                elif i == 3:
                    proxy.black_hole(Way.TO_CLIENT)
                    made[2].close()
                    made[3].close()


def test_closing_leaves_nothing_of_a_connection_to_where_nobody_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with callers(1) as (caller,), nothing_left(proxy := Proxy(unused.getsockname()[1])):
            with proxy:
                caller.connect(("127.0.0.1", proxy.port))
                assert caller.recv(1) == b""
