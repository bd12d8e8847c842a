"""``syncline demo``: the story that it tells is true, and its commands work."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from syncline.cli.__main__ import main
from syncline.cli.replay import ServerProcess
from syncline.cli.verify import compare_files, verify_file
from syncline.client import Replica


def test_the_story_as_json_has_who_won_what_lost_and_that_all_agree(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["demo", "--json"]) == 0
    story = json.loads(capsys.readouterr().out)
    assert (story["converged"], story["verified"], story["problems"]) == (True, True, [])
    assert story["seconds"] < 10
    assert [(row["seq"], row["client"], row["outcome"]) for row in story["log"]] == [
        (1, "laptop", "applied"),
        (2, "laptop", "applied"),
        (2, "laptop", "applied"),
        (2, "laptop", "applied"),
        (3, "laptop", "applied"),
        (4, "laptop", "applied"),
        (5, "laptop", "applied"),
        (6, "phone", "merged"),
        (7, "phone", "won"),
        (8, "phone", "lost"),
        (9, "laptop", "applied"),
        (9, "laptop", "applied"),
    ]
    assert story["settled"] == {
        "bread": {"title": "Sourdough", "amount": 1},
        "milk": {"title": "Milk", "amount": 2, "shop": "Corner shop"},
    }
    by_record = {one["record"]: one for one in story["conflicts"]}
    bread, tea = by_record["todo/bread"], by_record["todo/tea"]
    assert (bread["field"], tea["field"]) == ("title", None)
    assert [(bread[side]["client"], bread[side]["value"]) for side in ("won", "lost")] == [
        ("phone", "Sourdough"),
        ("laptop", "Rye bread"),
    ]
    assert [(tea[side]["client"], tea[side]["value"]) for side in ("won", "lost")] == [
        ("laptop", None),
        ("phone", {"title": "Green tea"}),
    ]
    assert all(one["won"]["updated_at"] > one["lost"]["updated_at"] for one in (bread, tea))
    assert bread["won"]["had_seen"] == bread["lost"]["had_seen"] == {"laptop": 2}
    resolved = story["resolved"]
    assert resolved["open_before"] == {"laptop": 2, "phone": 2}
    assert resolved["open_after"] == {"laptop": 1, "phone": 1}
    back = {"title": "Rye bread", "amount": 1}
    assert resolved["record"] == {"laptop": back, "phone": back}


def test_the_command_it_prints_puts_the_other_value_back_on_both_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    assert main(["demo", "--keep", str(kept)]) == 0
    told = capsys.readouterr().out
    commands = re.findall(r"syncline (resolve \S+phone\.db \S+ local)", told)
    assert len(commands) == 1
    assert main(shlex.split(commands[0])) == 0
    paths = [kept / "laptop.db", kept / "phone.db"]
    with (
        ServerProcess(kept / "server.db", kept / "server.log") as server,
        Replica(paths[0]) as laptop,
        Replica(paths[1]) as phone,
    ):
        for replica in (phone, laptop):
            replica.sync_once(server.url)
            (session,) = replica.sessions()
            assert session.conflicts() == []
            assert session.get("todo", "tea") == {"title": "Green tea", "amount": 1}
    assert compare_files(kept / "server.db", paths) == []
    assert all(verify_file(path).ok for path in (kept / "server.db", *paths))


def test_what_it_tells_in_a_pipe_is_plain_and_every_command_for_the_kept_files_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    assert main(["demo", "--keep", str(kept)]) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "equal to the server's, byte for byte" in told
    assert "every hash, number and row recomputed" in told
    looking = re.findall(r"^  syncline ((?:log|conflicts|records|verify) .*)$", told, re.MULTILINE)
    assert len(looking) == 4
    for command in looking:
        assert main(shlex.split(command)) == 0
        assert capsys.readouterr().out
