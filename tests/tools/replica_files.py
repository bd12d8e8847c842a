"""Replica files with a life behind them: real replicas, synced with a real server."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from syncline.client import Replica, Session
from syncline.server import SqliteStore, SyncServer

SESSION = "shared"
VALUES: Sequence[Any] = (1, True, 1.5, "x", None, b"\x00y", [1, {"z": 1, "a": 2}])
RECORDS = ("r0", "r1", "r2", "r3")


def build_replicas(
    folder: Path, seed: int = 0, steps: int = 80, *, bootstrap_entries_min: int = 10_000
) -> tuple[Path, list[Path]]:
    """A server's file and three replicas of it, all closed; the last two have ops that wait."""
    randomness = random.Random(seed)
    data, paths = folder / "server.db", [folder / f"{name}.db" for name in ("ann", "bob", "cy")]
    server = SyncServer(SqliteStore(data), port=0, bootstrap_entries_min=bootstrap_entries_min)
    with server:
        replicas = [Replica(path, client_id=path.stem, durability="normal") for path in paths]
        replicas[0].create_session("Groceries", session_id=SESSION)
        for step in range(steps):
            replica = randomness.choice(replicas)
            if randomness.random() < 0.12:
                replica.sync_once(server.url)
            else:
                write(replica.session(SESSION), randomness, step)
        for replica in replicas * 2:
            replica.sync_once(server.url)
        for replica in replicas[1:]:
            for step in range(6):
                write(replica.session(SESSION), randomness, step)
        for replica in replicas:
            replica.close()
    return data, paths


def write(session: Session, randomness: random.Random, step: int) -> None:
    """One random write, often of a record that others write too."""
    id_, chance = randomness.choice(RECORDS), randomness.random()
    fields = {name: randomness.choice(VALUES) for name in randomness.sample("abc", 2)}
    conflicts = session.conflicts()
    if session.get("todo", id_) is None or chance < 0.2:
        session.put("todo", id_, fields)
    elif chance < 0.3:
        session.delete("todo", id_)
    elif chance < 0.4:
        session.append("said", {"step": step})
    elif chance < 0.5 and conflicts:
        choice: Literal["local", "remote"] = "local" if chance < 0.45 else "remote"
        session.resolve_conflict(randomness.choice(conflicts).id, choice)
    else:
        session.patch("todo", id_, fields)


def sync_all(data: Path, paths: Sequence[Path]) -> None:
    """Sync these replicas until all have everything."""
    with SyncServer(SqliteStore(data), port=0) as server:
        for path in [*paths, *paths]:
            with Replica(path, create=False) as replica:
                replica.sync_once(server.url)
