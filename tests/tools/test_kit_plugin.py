"""The plugin and the extra: fixtures that others get, at no cost to those who do not use them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from syncline import testing
from syncline.client import Replica
from syncline.server import SyncServer
from syncline.testing import Proxy, Way, World

WAIT_S = 20.0
NOTE = {"title": "Milk"}

Replicas = Callable[..., Replica]


def python(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def without_extra(script: str) -> str:
    """What a script prints where the libraries of the extra are not installed."""
    hidden = "import sys\nfor name in ('hypothesis', 'pytest'): sys.modules[name] = None\n"
    return python(hidden + script)


# The fixtures.


def test_replicas_sync_with_the_server(
    syncline_server: SyncServer, syncline_replicas: Replicas, tmp_path: Path
) -> None:
    ann, bob = syncline_replicas("ann"), syncline_replicas("bob", durability="normal")
    ann.session("s").put("notes", "n1", NOTE)
    ann.sync_once(syncline_server.url)
    bob.sync_once(syncline_server.url)
    assert bob.session("s").get("notes", "n1") == NOTE
    assert (ann.client_id, ann.path) == ("ann", tmp_path / "ann.db")


def test_a_replica_opened_again_is_the_same_file(syncline_replicas: Replicas) -> None:
    syncline_replicas("ann").session("s").put("notes", "n1", NOTE)
    assert syncline_replicas("ann").session("s").get("notes", "n1") == NOTE


def test_the_link_can_be_cut_black_holed_healed_and_delayed(
    syncline_link: Proxy, syncline_replicas: Replicas
) -> None:
    ann = syncline_replicas("ann")
    session = ann.session("s")
    with ann.connect(syncline_link.url) as online:
        online.wait_synced(WAIT_S)
        syncline_link.drop()
        syncline_link.wait_connections(2, WAIT_S)
        syncline_link.black_hole(Way.TO_SERVER)
        receipt = session.put("notes", "n1", NOTE)
        syncline_link.heal()
        syncline_link.drop()
        online.wait_synced(WAIT_S)
        assert receipt.state.value == "applied"
        syncline_link.delay(Way.TO_SERVER, 0.2)
        began = time.monotonic()
        session.put("notes", "n2", NOTE)
        online.wait_synced(WAIT_S)
        assert time.monotonic() - began >= 0.2


def test_waiting_for_a_connection_that_nobody_makes_ends(syncline_link: Proxy) -> None:
    with pytest.raises(TimeoutError, match="0 of 1 connections"):
        syncline_link.wait_connections(1, timeout=0.01)


def test_a_world_is_made_from_its_seed(syncline_world: Callable[..., World]) -> None:
    first, second = (syncline_world(3, devices=2, writes=8).run() for _ in range(2))
    assert first.violations == []
    assert first.trace == second.trace


# What they cost.


def test_the_plugin_is_an_entry_point() -> None:
    (found,) = entry_points(group="pytest11", name="syncline")
    assert found.value == "syncline.testing.plugin"


def test_the_plugin_imports_nothing_and_its_fixtures_only_pytest() -> None:
    loaded = python(
        "import sys, pytest; before = set(sys.modules)\n"
        "import syncline.testing.plugin, syncline.testing._fixtures\n"
        "print(*sorted(name for name in set(sys.modules) - before if 'syncline' in name))"
    )
    names = loaded.split()
    assert [name for name in names if not name.startswith("syncline.testing")] == ["syncline"]
    assert set(names) <= {
        "syncline",
        "syncline.testing",
        "syncline.testing._fixtures",
        "syncline.testing.plugin",
    }


def test_every_public_name_has_a_home() -> None:
    assert [name for name in testing.__all__ if not hasattr(testing, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = testing.nothing


# Without the extra.


def test_the_kit_imports_and_simulates_without_the_extra() -> None:
    script = (
        "import syncline.testing, syncline.testing.plugin\n"
        "from syncline.testing import Options, Proxy, play, play_history, record\n"
        "print(play(1, Options(devices=2, writes=4)).violations)"
    )
    assert without_extra(script) == "[]\n"


@pytest.mark.parametrize(
    ("statement", "part", "library"),
    [
        ("from syncline.testing import check_resolver", "strategies", "hypothesis"),
        ("import syncline.testing.strategies", "strategies", "hypothesis"),
        ("from syncline.testing import StoreContract", "StoreContract", "pytest"),
    ],
)
def test_what_needs_the_extra_says_so(statement: str, part: str, library: str) -> None:
    script = f"try:\n    {statement}\nexcept ModuleNotFoundError as error:\n    print(error)"
    assert without_extra(script) == (
        f"syncline.testing.{part} needs {library}, which is in an extra:"
        " pip install 'syncline[testing]'\n"
    )
