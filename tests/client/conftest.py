"""The wire that most tests of the client run on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.wire import IN_MEMORY, Wire


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory, where there is such a place: no test of logic waits for a disk."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as made:
        yield Path(made)


@pytest.fixture
def wire(folder: Path) -> Iterator[Wire]:
    """A server and whatever replicas a test opens on it, in that folder."""
    made = Wire(folder=folder)
    yield made
    made.close()
