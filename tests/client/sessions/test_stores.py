"""The stores of the house against the contract."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from syncline.client import Replica
from syncline.client.sessions import (
    AgentDefinition,
    JsonSessionStore,
    ReplicaSessionStore,
    SessionRuntime,
    WriteMetadata,
    memory_store,
)
from syncline.sync.sessions import SessionStore, _memory_store
from syncline.testing import SessionStoreContract


def test_R1_6_a_runtime_takes_any_store_in_one_argument_and_memory_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_memory_store, "_warned", False)
    with Replica(tmp_path / "r.db", durability="normal") as replica:
        with caplog.at_level(logging.WARNING, "syncline.sync.sessions"):
            stores: list[SessionStore | None] = [
                None,
                None,
                JsonSessionStore(tmp_path / "sessions"),
                ReplicaSessionStore(replica),
            ]
            for store in stores:
                runtime = SessionRuntime(store)
                made = runtime.create(AgentDefinition("helper"))
                assert runtime.execute(made.id, WriteMetadata("a", 1)).version == 2
                assert runtime.get_session(made.id).state.metadata == {"a": 1}
    (warning,) = caplog.messages
    assert "nothing lasts longer than this process" in warning


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
