"""``syncline replay``: real server processes, replica files and connections, proven from files."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.tools.histories import kinto, made_up, synced, write_history, written

import syncline.cli.replay as replaying
from syncline.cli.__main__ import main
from syncline.cli.replay import History, Played, Result, check, play, read_history

KINTO_FIGURES = {
    "devices": 50,
    "writes": 3068,
    "changes": 8746,
    "syncs": 3447,
    "entries": 3068,
    "alive": 295,
    "concurrent": 188,
    "lost": 92,
    "converged": True,
    "verified": True,
    "sha256": "569f042c0e5bae00c2d7ea162b91d3ef7cabc36a55b99529e0b3e254eb66fe02",
}


def replay(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any], str]:
    """The exit code, what it printed as JSON without the seconds, and what it complained of."""
    code = main(["replay", *args, "--json"])
    printed = capsys.readouterr()
    figures = json.loads(printed.out)
    assert figures.pop("seconds") > 0
    return code, figures, printed.err


def flip_byte(path: Path, table: str, column: str) -> None:
    """Change one byte of the file itself, in the middle of the largest value of a column."""
    with closing(sqlite3.connect(path)) as db:
        (data,) = db.execute(
            f"SELECT {column} FROM {table} ORDER BY length({column}) DESC LIMIT 1"
        ).fetchone()
    raw = bytearray(path.read_bytes())
    raw[raw.index(data) + len(data) // 2] ^= 1
    path.write_bytes(raw)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    path = tmp_path_factory.mktemp("history") / "history.jsonl"
    return read_history(write_history(path, made_up(seed=1)))


@pytest.fixture(scope="module")
def played(history: History, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play(history, tmp_path_factory.mktemp("played"))


@pytest.fixture(scope="module")
def undisturbed(history: History, played: Played) -> Result:
    return check(history, played)


@pytest.mark.timeout(900)
def test_fifty_devices_of_a_real_history_end_where_the_independent_reference_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert replay(capsys, str(kinto())) == (0, KINTO_FIGURES, "")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_real_history_ends_the_same_when_the_network_is_cut(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert replay(capsys, str(kinto()), "--cut", "0.2") == (0, KINTO_FIGURES, "")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_real_history_converges_with_eight_devices_online_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, figures, complaints = replay(capsys, str(kinto()), "--online", "8", "--cut", "0.05")
    assert (code, complaints) == (0, "")
    assert (figures["entries"], figures["converged"], figures["verified"]) == (3068, True, True)


def test_a_small_history_converges_and_holds(history: History, undisturbed: Result) -> None:
    assert undisturbed.problems == ()
    assert (undisturbed.converged, undisturbed.verified) == (True, True)
    assert undisturbed.entries == history.writes
    assert undisturbed.lost and undisturbed.concurrent


def test_cuts_of_the_network_change_nothing(
    history: History, undisturbed: Result, tmp_path: Path
) -> None:
    played = play(history, tmp_path, cut=0.25, seed=3)
    assert played.cuts > 5
    assert check(history, played) == undisturbed


def test_several_devices_online_at_once_converge_and_hold(history: History, tmp_path: Path) -> None:
    result = check(history, play(history, tmp_path, online=6))
    assert result.problems == ()
    assert (result.converged, result.verified) == (True, True)
    assert result.entries == history.writes


def test_what_nobody_synced_before_the_end_reaches_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [
        written("one", 1000, ["put", "a", {"by": "one"}]),
        synced("one"),
        written("two", 2000, ["put", "a", {"by": "two"}], ["put", "b", {}]),
        written("three", 1500, ["delete", "a"]),
    ]
    path = write_history(tmp_path / "history.jsonl.gz", steps)
    code, figures, complaints = replay(capsys, str(path), "--durability", "normal")
    assert (code, complaints) == (0, "")
    assert figures == {
        "devices": 3,
        "writes": 3,
        "changes": 4,
        "syncs": 1,
        "entries": 3,
        "alive": 2,
        "concurrent": 2,
        "lost": 1,
        "converged": True,
        "verified": True,
        "sha256": sha256(b'{"a":{"by":"two"},"b":{}}').hexdigest(),
    }


@pytest.mark.parametrize(
    ("whose", "table", "column"),
    [
        ("server", "log", "entry"),
        ("server", "records", "state"),
        ("replica", "syncline_entries", "entry"),
        ("replica", "syncline_records", "state"),
    ],
)
def test_one_flipped_byte_in_a_closed_file_is_found(
    history: History, played: Played, whose: str, table: str, column: str
) -> None:
    path = played.server if whose == "server" else played.replicas[-1]
    before = path.read_bytes()
    flip_byte(path, table, column)
    assert check(history, played).verified is False
    path.write_bytes(before)


def test_replicas_of_another_server_do_not_count_as_converged(
    history: History, played: Played, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    path = write_history(tmp_path / "history.jsonl", made_up(5, devices=2, steps=8))
    other = play(read_history(path), folder)
    result = check(history, Played(other.server, played.replicas, cuts=0))
    assert (result.converged, result.verified) == (False, True)


def test_the_command_fails_when_a_byte_flips_between_play_and_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_after_damage(history: History, played: Played) -> Result:
        flip_byte(played.replicas[0], "syncline_entries", "entry")
        return check(history, played)

    monkeypatch.setattr(replaying, "check", check_after_damage)
    path = write_history(tmp_path / "history.jsonl", made_up(2, devices=2, steps=12))
    code, figures, complaints = replay(capsys, str(path))
    assert (code, figures["verified"]) == (1, False)
    assert "problem: " in complaints and "error: the play did not hold" in complaints


def test_kept_files_stay_and_a_folder_with_something_in_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A token of the user's own server must not lock the devices out.
    monkeypatch.setenv("SYNCLINE_TOKEN", "secret")
    path = write_history(tmp_path / "history.jsonl", made_up(3, devices=2, steps=8))
    kept = tmp_path / "kept"
    assert main(["replay", str(path), "--keep", str(kept)]) == 0
    assert sorted(file.name for file in kept.rglob("*.db")) == ["d0.db", "d1.db", "server.db"]
    assert "converged\ttrue\nverified\ttrue\n" in capsys.readouterr().out
    assert main(["replay", str(path), "--keep", str(kept)]) == 1
    assert "is not empty; it was left as it is" in capsys.readouterr().err


def test_nothing_is_played_when_a_line_is_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_history(tmp_path / "history.jsonl", made_up(4))
    path.write_text(path.read_text() + '{"do": "dance"}\n')
    kept = tmp_path / "kept"
    assert main(["replay", str(path), "--keep", str(kept)]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and not kept.exists()
    assert printed.err.startswith(f"error: {path}, line 92: ")
    assert "[3110 bad history file]" in printed.err
