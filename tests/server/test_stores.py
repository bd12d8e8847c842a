"""The stores of the house against the contract."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.store_contract import (
    StoreContract,
)

from syncline.server import _memory_store
from syncline.server._memory_store import MemoryStore
from syncline.server._sqlite_store import SqliteStore
from syncline.server._store import Store


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        yield MemoryStore()

    def test_it_says_once_that_nothing_lasts(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(_memory_store, "_warned", False)
        with caplog.at_level(logging.WARNING, "syncline.server"):
            MemoryStore()
            MemoryStore()
        assert caplog.messages == ["the store is in memory: nothing lasts longer than this process"]


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def store(self, path: Path) -> Iterator[Store]:
        store = SqliteStore(path)
        yield store
        store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "server.db"
