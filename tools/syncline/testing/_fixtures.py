"""The fixtures of the kit: a server, replicas, a world from a seed, and a link to make trouble on.

Only pytest is imported here, since every pytest run of every user loads this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from syncline.client import Replica
    from syncline.server import SyncServer

    from ._link import Proxy
    from ._world import World

pytest.register_assert_rewrite("syncline.testing._contract")


@pytest.fixture
def syncline_server() -> Iterator[SyncServer]:
    """A real server on a free port, in memory; ``.url`` is its address."""
    from syncline.server import MemoryStore, SyncServer

    with SyncServer(MemoryStore(), port=0) as server:
        yield server


@pytest.fixture
def syncline_link(syncline_server: SyncServer) -> Iterator[Proxy]:
    """A way to ``syncline_server`` at ``.url`` that can be cut, delayed and black-holed."""
    from ._link import Proxy

    with Proxy(syncline_server.port) as proxy:
        yield proxy


@pytest.fixture
def syncline_replicas(tmp_path: Path) -> Iterator[Callable[..., Replica]]:
    """``syncline_replicas("ann")`` opens the replica of that name; all are closed at the end.

    The file is ``tmp_path / "ann.db"``, the client id of a fresh one ``ann``; options are those of
    ``Replica``. The same name again opens the same file once more, as another process would.
    """
    from syncline.client import Replica

    with ExitStack() as opened:

        def open_replica(name: str = "device", **options: Any) -> Replica:
            made = Replica(tmp_path / f"{name}.db", **({"client_id": name} | options))
            return opened.enter_context(made)

        yield open_replica


@pytest.fixture
def syncline_world() -> Callable[..., World]:
    """``syncline_world(seed, **options)`` makes a simulated world; options are ``Options``'s."""
    from ._world import Options, World

    def make(seed: int, **options: Any) -> World:
        return World(seed, Options(**options))

    return make
