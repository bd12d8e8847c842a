"""Record and replay: what real files tell is played again, to the same records and conflicts."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tools.replica_files import SESSION, VALUES, write

from syncline.cli.__main__ import main
from syncline.cli.replay import read_history
from syncline.cli.verify import verify_file
from syncline.client import Replica
from syncline.server import SqliteStore, SyncServer
from syncline.sync import Conflict, LocalError, NotAReplica, NotFound
from syncline.testing import History, Played, Recording, Write, play_history, record
from syncline.testing._record import recording_of
from syncline.testing._recorded import read_entry
from syncline.testing.strategies import histories

DEVICES = ("ann", "bob", "cy")


def lived(folder: Path, seed: int, *, steps: int = 60) -> tuple[Path, list[Path]]:
    """A server's file and those of three devices that synced now and then, each sync to its end."""
    rng = random.Random(seed)
    data, paths = folder / "server.db", [folder / f"{name}.db" for name in DEVICES]
    with SyncServer(SqliteStore(data), port=0) as server:
        replicas = [Replica(path, client_id=path.stem, durability="normal") for path in paths]
        for step in range(steps):
            replica = rng.choice(replicas)
            if rng.random() < 0.25:
                replica.sync_once(server.url)
            else:
                write(replica.session(SESSION), rng, step)
        for replica in replicas:
            replica.sync_once(server.url)
            replica.close()
    return data, paths


def shown(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    with Replica(path) as replica:
        session = replica.session(SESSION)
        return {(c, id_): f for c in session.collections() for id_, f in session.records(c)}


def conflicts_in(path: Path) -> set[tuple[str, str, str]]:
    with Replica(path) as replica:
        return told(replica.session(SESSION).conflicts())


def told(conflicts: Sequence[Conflict]) -> set[tuple[str, str, str]]:
    """Which field lost what; ids name numbers, and these are counted anew."""
    return {(one.record_id, one.field, repr(one.value)) for one in conflicts}


def same_as(played: Played, path: Path) -> bool:
    assert played.violations == ()
    return played.records == shown(path) and told(played.conflicts) == conflicts_in(path)


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    return lived(tmp_path_factory.mktemp("life"), 1)


@pytest.mark.parametrize("seed", range(2, 5))
def test_a_recording_plays_to_the_same_records_and_conflicts(tmp_path: Path, seed: int) -> None:
    data, paths = lived(tmp_path, seed)
    recording = record(data)
    assert recording.inexact == 0
    with SyncServer(SqliteStore(data), port=0) as server, Replica(paths[0]) as replica:
        replica.sync_once(server.url)
    assert conflicts_in(paths[0]) != set()
    assert same_as(play_history(recording.history), paths[0])


def test_recordings_of_drawn_histories_play_to_the_same_records_and_conflicts() -> None:
    exact: list[bool] = []

    @settings(max_examples=40, deadline=None, derandomize=True, database=None)
    @given(histories(st.fixed_dictionaries({"a": st.integers(0, 3)}), devices=4, steps_max=24))
    def same_again(history: History) -> None:
        first = play_history(history)
        recording = recording_of([read_entry(entry.encode()) for entry in first.entries])
        exact.append(recording.inexact == 0)
        again = play_history(recording.history)
        if exact[-1]:
            assert again.violations == ()
            assert (again.records, told(again.conflicts)) == (first.records, told(first.conflicts))

    same_again()
    assert sum(exact) >= 0.95 * len(exact)


def test_what_waits_in_an_outbox_is_part_of_the_history(life: tuple[Path, list[Path]]) -> None:
    data, paths = life
    with Replica(paths[0]) as replica:
        replica.session(SESSION).put("late", "l1", {"a": b"\x00"})
    recording = record(data, *paths)
    assert len(recording.history.writes) == len(record(data).history.writes) + 1
    played = play_history(recording.history)
    assert played.violations == ()
    assert played.records["late", "l1"] == {"a": b"\x00"}


def test_the_replicas_alone_tell_the_same_history_as_the_server(
    life: tuple[Path, list[Path]],
) -> None:
    data, paths = life
    # The last to sync has all there is.
    assert record(paths[-1]).history.writes == record(data).history.writes


def test_digests_tell_what_was_equal_and_nothing_else(life: tuple[Path, list[Path]]) -> None:
    data, _ = life
    kept, dropped = record(data), record(data, values=False)
    assert shape(kept.history) == shape(dropped.history)
    pairs = {(repr(a), b) for a, b in zip(fields(kept), fields(dropped), strict=True)}
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}) > len(VALUES)
    assert all(len(digest) == 16 for _, digest in pairs)
    assert set(fields(record(data, values=False))).isdisjoint(fields(dropped))


def fields(recording: Recording) -> list[Any]:
    _, *lines = [json.loads(line) for line in recording.history.lines()]
    changes = [change for line in lines for change in line.get("changes", ())]
    return [value for change in changes for value in maps(change) for value in value.values()]


def maps(change: list[Any]) -> list[dict[str, Any]]:
    return [part for part in change if isinstance(part, dict)]


def shape(history: History) -> list[Any]:
    return [
        [step.device, step.stamps, [type(change).__name__ for change in step.changes]]
        if isinstance(step, Write)
        else step
        for step in history.steps
    ]


def test_the_command_records_and_replay_plays_it_back(
    life: tuple[Path, list[Path]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, _ = life
    out, played = tmp_path / "history.jsonl", tmp_path / "played"
    assert main(["record", str(data), "--out", str(out), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    history = read_history(out)
    assert figures == {
        "out": str(out),
        "devices": 3,
        "writes": history.writes,
        "changes": history.changes,
        "syncs": history.syncs,
        "inexact": 0,
    }
    assert (
        main(["replay", str(out), "--durability", "normal", "--keep", str(played), "--json"]) == 0
    )
    result = json.loads(capsys.readouterr().out)
    (session,) = verify_file(data).sessions
    assert (result["converged"], result["verified"]) == (True, True)
    assert (result["sha256"], result["alive"]) == (session.sha256, session.alive)
    assert main(["record", str(data), "--out", str(out)]) == 1
    assert "is there already" in capsys.readouterr().err


def test_what_cannot_be_recorded_says_why(life: tuple[Path, list[Path]], tmp_path: Path) -> None:
    data, paths = life
    with pytest.raises(NotFound, match="there is no file"):
        record(tmp_path / "nothing.db")
    with pytest.raises(NotFound, match="there is no session other"):
        record(data, session="other")
    other = tmp_path / "other.db"
    sqlite3.connect(other).close()
    other.write_text("no database at all, but long enough to be read as one" * 40)
    with pytest.raises(NotAReplica):
        record(other)
    with Replica(tmp_path / "two.db") as replica:
        replica.session("one").append("said", {})
        replica.session("two")
    with pytest.raises(LocalError, match="2 sessions"):
        record(tmp_path / "two.db")
    with pytest.raises(LocalError, match="nothing was ever written"):
        record(tmp_path / "two.db", session="two")
    assert len(record(tmp_path / "two.db", session="one").history.writes) == 1


def test_a_replica_that_joined_late_cannot_tell_the_beginning(
    life: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    data, _ = life
    with SyncServer(SqliteStore(data), port=0, bootstrap_entries_min=5) as server:
        with Replica(tmp_path / "late.db") as replica:
            replica.sync_once(server.url)
    with pytest.raises(LocalError, match="record the server's file"):
        record(tmp_path / "late.db")


def test_files_of_different_logs_are_not_mixed(
    life: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    data, _ = life
    _, others = lived(tmp_path, 9, steps=8)
    with pytest.raises(LocalError, match="not of one log"):
        record(data, others[0])
