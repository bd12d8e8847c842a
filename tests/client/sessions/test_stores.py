"""The stores of the house against the contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from syncline.client import Replica
from syncline.client.sessions import JsonSessionStore, ReplicaSessionStore, memory_store
from syncline.sync.sessions import SessionStore
from syncline.testing import SessionStoreContract


class TestMemoryStore(SessionStoreContract):
    @pytest.fixture
    def store(self) -> Iterator[SessionStore]:
        yield memory_store()


class TestJsonStore(SessionStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[SessionStore]:
        yield JsonSessionStore(tmp_path / "sessions")

    def reopened(self, store: SessionStore) -> SessionStore:
        assert isinstance(store, JsonSessionStore)
        return JsonSessionStore(store.folder)


class TestReplicaStore(SessionStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[SessionStore]:
        path = tmp_path / "r.db"
        with (
            Replica(path, durability="normal") as replica,
            Replica(path, durability="normal") as self.other,
        ):
            yield ReplicaSessionStore(replica)

    def reopened(self, store: SessionStore) -> SessionStore:
        """Through another connection to the file, as another process has one."""
        return ReplicaSessionStore(self.other)
