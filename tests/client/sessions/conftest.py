"""Tests of turns are coroutines: each runs in an event loop of its own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.sessions.turning import Stage


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def stage(folder: Path) -> Iterator[Stage]:
    """A replica with a clock that the test moves."""
    made = Stage(folder)
    with made.replica:
        yield made
