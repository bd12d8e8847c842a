"""``syncline sessions``: looking back, rolling back, forking and moving sessions, offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from syncline.cli.__main__ import cli
from syncline.client import Replica
from syncline.sync import NotFound, SessionDeleted

COMMANDS = sorted(cli.commands["sessions"].commands)  # type: ignore[attr-defined]


class Shell:
    """Runs command lines on one replica."""

    def __init__(self, folder: Path) -> None:
        self.replica = folder / "a.db"
        self._runner = CliRunner()
        with Replica(self.replica, client_id="ann", durability="normal") as replica:
            session = replica.create_session("mine")
            session.put("notes", "n1", {"title": "Tea"})
            session.append("said", {"text": "hello"})
            self.session = session.id

    def run(self, command: str, *words: str, input: str | None = None, code: int = 0) -> str:
        return self.result(command, str(self.replica), *words, input=input, code=code).output

    def result(self, *words: str, input: str | None = None, code: int = 0) -> Result:
        result = self._runner.invoke(cli, ["sessions", *words], input=input)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    def json(self, command: str, *words: str) -> Any:
        return json.loads(self.run(command, *words, "--json"))

    def put(self, **fields: Any) -> None:
        with Replica(self.replica, durability="normal") as replica:
            replica.session(self.session).put("notes", "n1", fields)

    def note(self, session: str = "") -> Any:
        with Replica(self.replica, durability="normal") as replica:
            return replica.session(session or self.session, create=False).get("notes", "n1")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_group_has_help_with_an_example(shell: Shell, name: str) -> None:
    text = shell.result(name, "--help").output
    assert "Example" in text and f"syncline sessions {name} " in text


def test_without_a_command_the_sessions_are_listed_as_ever(shell: Shell) -> None:
    file = str(shell.replica)
    plain = f"{shell.session}\tmine\t0\t0\n"
    assert shell.result(file).output == shell.result("list", file).output == plain
    for words in ([file, "--json"], ["--json", file], ["list", file, "--json"]):
        (row,) = json.loads(shell.result(*words).output)
        assert (row["session"], row["label"]) == (shell.session, "mine")
    assert "list" in shell.result("--help").output
    assert shell.result(code=2).output.startswith("Usage: cli sessions")


def test_a_checkpoint_a_rollback_and_its_undoing(shell: Shell) -> None:
    point = shell.json("checkpoint", "first")
    assert (point["label"], point["by"]) == ("first", "ann")
    shell.put(title="Coffee", strong=True)
    assert shell.json("checkpoint", "--list") == [point]
    place = point["checkpoint"]
    assert shell.json("rollback", place, "--dry-run") == [
        {
            "kind": "changed",
            "collection": "notes",
            "id": "n1",
            "sets": {"title": "Tea"},
            "drops": ["strong"],
        }
    ]
    assert shell.note() == {"title": "Coffee", "strong": True}
    done = shell.json("rollback", place)
    assert (done["changed"], done["state"]) == (1, "queued")
    assert shell.note() == {"title": "Tea"}
    shell.json("rollback", done["rollback"])
    assert shell.note() == {"title": "Coffee", "strong": True}
    shell.json("rollback", place, "--collection", "tasks")
    assert shell.note() == {"title": "Coffee", "strong": True}
    file = str(shell.replica)
    stale = shell.result("rollback", file, place, "--expect-seq", "7", code=1)
    assert "not at 7" in str(stale.exception)
    assert shell.json("checkpoint", "--keep", "0") == [{"dropped": place}]
    shell.run("checkpoint", "label", "--list", code=2)
    assert isinstance(shell.result("rollback", file, place, code=1).exception, NotFound)


def test_show_tells_what_a_session_is_and_was(shell: Shell) -> None:
    point = shell.json("checkpoint", "first")
    shell.put(title="Coffee")
    done = shell.json("rollback", point["checkpoint"])
    shown = shell.json("show")
    assert shown["header"]["label"] == "mine" and not shown["deleted"]
    assert (shown["records"], shown["events"], shown["pending"]) == ({"notes": 1}, 1, 6)
    assert shown["checkpoints"] == [point]
    assert shown["rollbacks"] == [{"rollback": done["rollback"], "at_seq": None, "to_seq": 0}]
    before = shell.json("show", "--at", done["rollback"])
    assert before["at"] == [{"collection": "notes", "id": "n1", "fields": {"title": "Coffee"}}]
    assert "notes\tn1\t" in shell.run("show", "--at", point["checkpoint"])
    assert "no seq 5 here" in str(
        shell.result("show", str(shell.replica), "--at", "5", code=1).exception
    )


def test_create_and_fork_make_sessions(shell: Shell) -> None:
    point = shell.json("checkpoint")["checkpoint"]
    shell.put(title="Coffee")
    fork = shell.json("fork", "--at", point, "--label", "again")
    assert (fork["label"], fork["forked_from"]["session"]) == ("again", shell.session)
    assert shell.note(fork["session"]) == {"title": "Tea"}
    bare = shell.json("fork", "--no-events", "--session", shell.session)["session"]
    assert shell.json("show", "--session", bare)["events"] == 0
    made = shell.json("create", "empty")
    assert made["label"] == "empty"
    assert len(shell.json("list")) == 4
    assert "name one" in shell.run("fork", code=2)


def test_an_export_is_imported_as_a_new_session(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    shell.run("export", "-o", str(file))
    assert shell.run("export") == file.read_text(encoding="utf-8")
    made = shell.json("import", str(file), "--label", "copy")
    assert (made["label"], made["records"], made["events"]) == ("copy", 1, 1)
    assert shell.note(made["session"]) == {"title": "Tea"}
    text = file.read_text(encoding="utf-8")
    again = json.loads(shell.run("import", "-", "--json", input=text))
    assert again["label"] == "mine"
    file.write_text(text[:-20], encoding="utf-8")
    assert "line 5" in str(shell.result("import", str(shell.replica), str(file), code=1).exception)
    file.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in shell.run("import", str(file), code=2)
    assert len(shell.json("list")) == 3


def test_a_session_is_deleted_only_when_it_is_meant(shell: Shell) -> None:
    assert "everywhere?" in shell.run("delete", input="n\n", code=1)
    assert shell.note() == {"title": "Tea"}
    shell.run("checkpoint", "kept?")
    gone = json.loads(shell.run("delete", "--yes", "--json"))
    assert gone["session"] == shell.session and gone["state"] == "queued"
    assert shell.json("show")["deleted"] is True and shell.json("checkpoint", "--list") == []
    failed = shell.result("checkpoint", str(shell.replica), "more", code=1)
    assert isinstance(failed.exception, SessionDeleted)
    assert shell.json("fork")["label"] == "mine"


def test_R3_11_sessions_are_listed_by_what_is_asked_in_pages(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    with Replica(shell.replica, durability="normal") as replica:
        for team in ("blue", "red", "blue"):
            made = replica.create_session(team)
            made.patch("$session", "header", {"agent": "helper", "metadata.team": team})
    wanted = ("--metadata", '{"team": "blue"}', "--limit", "1")
    first = shell.json("list", *wanted)
    second = shell.json("list", *wanted, "--cursor", first["cursor"])
    labels = [row["label"] for page in (first, second) for row in page["sessions"]]
    assert (labels, second["cursor"]) == (["blue", "blue"], None)
    assert len(shell.json("list", "--agent", "helper")["sessions"]) == 3
    assert "no JSON" in shell.run("list", "--metadata", "{", code=2)
    assert "--status" in shell.run("list", "--status", "asleep", code=2)
