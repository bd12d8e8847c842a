"""The command line, run as a user runs it: words in, lines and exit codes out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import pytest
from tests.tools.server_files import build_server

from syncline.cli import _output
from syncline.cli.__main__ import cli, main
from syncline.client import Replica
from syncline.server import SqliteStore, SyncServer

COMMANDS = sorted(cli.commands)


class Shell:
    """Runs command lines in a folder."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, *words: object, code: int = 0) -> str:
        """What a command printed; it must end with this exit code."""
        self._capsys.readouterr()
        assert main([str(word) for word in words]) == code
        out, self.err = self._capsys.readouterr()
        return out

    def json(self, *words: object) -> Any:
        return json.loads(self.run(*words, "--json"))


@pytest.fixture
def shell(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SYNCLINE_TOKEN", raising=False)
    return Shell(capsys)


@contextmanager
def serving(*words: str, env: Mapping[str, str] | None = None) -> Iterator[tuple[str, Any]]:
    """A server process; its first line and the process. It must end cleanly when asked to."""
    process = subprocess.Popen(
        [sys.executable, "-m", "syncline.cli", "serve", "--port", "0", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().rstrip("\n"), process
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.communicate()


def test_the_version_is_that_of_the_distribution(shell: Shell) -> None:
    assert shell.run("--version") == f"syncline, version {version('syncline')}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(shell: Shell, name: str) -> None:
    text = shell.run(name, "--help")
    assert "Example" in text
    assert f"syncline {name} " in text


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"anchor", "backup", "serve"}))
def test_every_command_that_prints_data_prints_json(shell: Shell, name: str) -> None:
    assert "--json" in shell.run(name, "--help")


def test_a_life_from_init_to_a_resolved_conflict(shell: Shell) -> None:
    with SyncServer(SqliteStore("server.db"), port=0) as server:
        for name in ("ann", "bob"):
            made = shell.json("init", f"{name}.db", "--client-id", name)
            assert made == {"replica": f"{name}.db", "client": name}
        receipt = shell.json("put", "ann.db", "todo", "milk", "title=Milk", "n=1", "ok=true")
        assert receipt["state"] == "queued"
        session = receipt["session"]
        assert shell.json("sync", "ann.db", server.url)["pending"] == 0
        shell.json("sync", "bob.db", server.url)
        assert shell.json("get", "bob.db", "todo", "milk") == {"title": "Milk", "n": 1, "ok": True}

        shell.run("patch", "ann.db", "todo", "milk", "title=Oat milk")
        shell.run("patch", "bob.db", "todo", "milk", "title=Soy milk", 'tags=["shop", 1.5]')
        for name in ("ann", "bob", "ann"):
            shell.run("sync", f"{name}.db", server.url)
        [conflict] = shell.json("conflicts", "ann.db")
        assert (conflict["field"], conflict["value"]) == ("title", "Oat milk")
        assert conflict == shell.json("conflicts", "server.db")[0]
        assert conflict["won_by"].startswith("bob at 20")
        shell.run("resolve", "ann.db", conflict["conflict"], "local")
        shell.run("sync", "ann.db", server.url)
        shell.run("delete", "ann.db", "todo", "milk", "--session", session)
        shell.run("sync", "ann.db", server.url)
        shell.run("sync", "bob.db", server.url)

        for file in ("ann.db", "bob.db", "server.db"):
            assert shell.json("conflicts", file) == []
            assert shell.json("records", file, "todo") == []
            assert shell.json("verify", file)["ok"] is True
            entries = shell.json("log", file)
            assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
            assert entries[-1]["what"] == "delete todo/milk"
            assert [row["session"] for row in shell.json("sessions", file)] == [session]
        logged = shell.json("log", "server.db", "--after", 3, "--limit", 1)
        assert [entry["outcome"] for entry in logged] == ["won"]
        assert logged[0]["changes"][0]["lost"] == [
            {"field": "title", "value": "Oat milk", "by": "ann"}
        ]


def test_a_conflict_can_be_resolved_with_new_fields(shell: Shell) -> None:
    with SyncServer(SqliteStore("server.db"), port=0) as server:
        for name in ("ann", "bob"):
            shell.run("init", f"{name}.db", "--client-id", name)
            shell.run("put", f"{name}.db", "todo", "milk", f"by={name}", "--session", "s")
            shell.run("sync", f"{name}.db", server.url)
        [conflict] = shell.json("conflicts", "bob.db")
        shell.run("resolve", "bob.db", conflict["conflict"], "by=both")
        assert shell.json("get", "bob.db", "todo", "milk") == {"by": "both"}
        assert shell.json("conflicts", "bob.db") == []
        shell.run("resolve", "bob.db", conflict["conflict"], "local", code=1)
        assert shell.err.startswith("error: there is no open conflict")


def test_status_says_what_waits_and_since_when(shell: Shell) -> None:
    shell.run("init", "ann.db", "--client-id", "ann")
    shell.run("put", "ann.db", "todo", "milk", "n=1")
    status = shell.json("status", "ann.db")
    assert (status["kind"], status["client"]) == ("replica", "ann")
    [session] = status["sessions"]
    assert (session["pending"], session["conflicts"], session["refused"]) == (2, 0, 0)
    assert session["pending_since"].startswith("20")
    assert session["paused"] is None
    assert status["connection"] == "never connected"
    shell.run("sync", "ann.db", "ws://127.0.0.1:1", code=1)
    status = shell.json("status", "ann.db")
    assert status["url"] == "ws://127.0.0.1:1"
    assert status["reason"]
    assert status["since"].startswith("20")
    assert status["synced_at"] is None


def test_bytes_and_nested_values_pass_through_json(shell: Shell) -> None:
    shell.run("init", "ann.db")
    fields = {"raw": {"$bytes": "00ff"}, "deep": {"a": [1, 2.5, None, {"b": {"$bytes": ""}}]}}
    shell.run("put", "ann.db", "todo", "x", "--json-fields", json.dumps(fields))
    assert shell.json("get", "ann.db", "todo", "x") == fields
    with Replica("ann.db", create=False) as replica:
        [session] = replica.sessions()
        assert (session.get("todo", "x") or {})["raw"] == b"\x00\xff"
    assert shell.json("records", "ann.db")[0]["fields"] == fields


def test_piped_output_is_tab_separated_lines_without_control_characters(shell: Shell) -> None:
    shell.run("init", "ann.db")
    shell.run("put", "ann.db", "todo", "x", "--json-fields", '{"t": "a\\tb\\u001b[31m", "n": 1}')
    assert shell.run("get", "ann.db", "todo", "x") == "n\t1\nt\ta\\tb\\x1b[31m\n"
    [line] = shell.run("records", "ann.db").splitlines()
    assert line.split("\t")[1:] == ["todo", "x", '{"n": 1, "t": "a\\tb\\u001b[31m"}']


def test_a_terminal_gets_a_table(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    build_server(Path("server.db"))
    monkeypatch.setattr(_output, "on_terminal", lambda: True)
    lines = shell.run("sessions", "server.db").splitlines()
    assert lines[1].split() == ["session", "label", "epoch", "seq"]
    assert lines[3].split()[:2] == ["first", "Groceries"]
    assert "every hash, number, record and row was recomputed" in shell.run("verify", "server.db")
    assert json.loads(shell.run("sessions", "server.db", "--json"))[0]["label"] == "Groceries"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("status", "nothing.db"), "error: there is no file nothing.db"),
        (("verify", "nothing.db"), "error: there is no file nothing.db"),
        (("verify", "other.txt"), "error: other.txt: "),
        (("records", "other.txt"), "error: other.txt is not a Syncline file"),
        (("records", "ann.db", "--session", "none"), "error: there is no session none"),
        (("get", "nothing.db", "a", "b"), "error: there is no replica nothing.db"),
        (("get", "other.txt", "a", "b"), "error: "),
        (("get", "ann.db", "a", "b"), "error: the replica has no session yet"),
        (("put", "ann.db", "$own", "b", "c=1"), "error: collection '$own' is reserved"),
        (("put", "ann.db", "a", "b", "c=1e999"), "error: the value at 'c' is inf"),
        (("patch", "ann.db", "a", "b", "c=1"), "error: the replica has no session yet"),
        (("init", "ann.db"), "error: there is a file ann.db already"),
        (("init", "no/where/x.db"), "error: "),
        (("sync", "ann.db", "ws://127.0.0.1:1"), "error: "),
        (("serve", "--memory", "--host", "0.0.0.0"), "error: without tokens the server listens"),
        (("serve", "--data", "other.txt"), "error: "),
        (("serve", "--memory", "--token-file", "no.json"), "error: there is no token file no.json"),
        (("restore", "--data", "nothing.db"), "error: "),
        (("backup", "--data", "ann.db", "copy.db"), "error: "),
    ],
)
def test_what_cannot_be_done_is_one_line_on_stderr_and_exit_code_1(
    shell: Shell, words: tuple[str, ...], sentence: str
) -> None:
    Path("other.txt").write_text("some text, and no database at all")
    shell.run("init", "ann.db")
    assert shell.run(*words, code=1) == ""
    [line] = shell.err.splitlines()
    assert line.startswith(sentence)
    assert "Traceback" not in line
    assert Path("other.txt").read_text() == "some text, and no database at all"


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("serve",),
        ("serve", "--memory", "--data", "x.db"),
        ("serve", "--memory", "--port", "99999"),
        ("put", "ann.db", "a"),
        ("put", "ann.db", "a", "b", "c"),
        ("put", "ann.db", "a", "b", "c=1", "c=2"),
        ("put", "ann.db", "a", "b", "c=1", "--json-fields", "{}"),
        ("put", "ann.db", "a", "b", "--json-fields", "[1]"),
        ("put", "ann.db", "a", "b", "--json-fields", '{"a": NaN}'),
        ("put", "ann.db", "a", "b", "--json-fields", '{"a": 1, "a": 2}'),
        ("resolve", "ann.db", "c"),
        ("log", "ann.db", "--limit", "0"),
        ("sync", "ann.db", "ws://x", "--timeout", "0"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(shell: Shell, words: tuple[str, ...]) -> None:
    shell.run("init", "ann.db")
    assert shell.run(*words, code=2) == ""
    assert "Error: " in shell.err


def test_a_replica_with_several_sessions_wants_one_named(shell: Shell) -> None:
    shell.run("init", "ann.db")
    for session in ("one", "two"):
        shell.run("put", "ann.db", "todo", "x", f"in={session}", "--session", session)
    shell.run("get", "ann.db", "todo", "x", code=2)
    assert "name one: --session one, two" in shell.err.replace("\n", " ")
    assert shell.json("get", "ann.db", "todo", "x", "--session", "two") == {"in": "two"}
    assert [row["session"] for row in shell.json("records", "ann.db")] == ["one", "two"]
    assert len(shell.json("records", "ann.db", "--session", "two")) == 1


def test_a_damaged_file_fails_verify_with_its_problems_and_exit_code_1(shell: Shell) -> None:
    build_server(Path("server.db"))
    good = shell.json("verify", "server.db")
    assert (good["ok"], good["problems"], good["kind"]) == (True, [], "server")
    data = bytearray(Path("server.db").read_bytes())
    at = data.index(b"hello")
    data[at] ^= 1
    Path("server.db").write_bytes(data)
    found = json.loads(shell.run("verify", "server.db", "--json", code=1))
    assert found["ok"] is False
    assert len(found["problems"]) > 0
    assert shell.err.startswith("error: server.db does not hold: ")
    lines = shell.run("verify", "server.db", code=1).splitlines()
    assert any(line.startswith("problem: ") for line in lines)


def test_an_interrupt_is_quiet_and_exit_code_130(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.commands["status"], "callback", interrupted)
    assert shell.run("status", "x", code=130) == ""
    assert shell.err.strip() == ""


def test_a_reader_that_leaves_is_not_a_traceback(shell: Shell) -> None:
    build_server(Path("server.db"))
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "syncline.cli", "log", "server.db"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=20,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_serve_says_where_it_listens_and_ends_cleanly_on_ctrl_c(shell: Shell) -> None:
    shell.run("init", "ann.db")
    shell.run("put", "ann.db", "todo", "milk", "n=1")
    with serving("--data", "server.db") as (line, _):
        assert line.startswith("listening on ws://127.0.0.1:")
        assert line.endswith(" (loopback only: there is no token)")
        url = line.split()[2]
        assert shell.json("sync", "ann.db", url)["sent"] == 2
        assert shell.json("verify", "server.db")["ok"] is True
        port = url.rpartition(":")[2]
        shell.run("serve", "--memory", "--port", port, code=1)
        assert shell.err.startswith(f"error: 127.0.0.1:{port} is in use")
        shell.run("serve", "--data", "server.db", "--port", "0", code=1)
        assert "server.db" in shell.err
    assert shell.json("sessions", "server.db")[0]["seq"] == 2


def test_a_token_from_the_environment_is_asked_for_and_given(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.run("init", "ann.db")
    shell.run("put", "ann.db", "todo", "milk", "n=1")
    with serving("--data", "server.db", env={"SYNCLINE_TOKEN": "secret"}) as (line, _):
        assert "token" not in line
        url = line.split()[2]
        shell.run("sync", "ann.db", url, "--token", "wrong", code=1)
        assert "[3020 unauthenticated]" in shell.err
        monkeypatch.setenv("SYNCLINE_TOKEN", "secret")
        assert shell.json("sync", "ann.db", url)["pending"] == 0


def test_a_session_that_may_not_be_opened_makes_sync_fail(shell: Shell) -> None:
    Path("tokens.json").write_text('{"secret": {"name": "ann", "sessions": ["other"]}}')
    shell.run("init", "ann.db")
    shell.run("put", "ann.db", "todo", "milk", "n=1", "--session", "mine")
    with serving("--data", "server.db", "--token-file", "tokens.json") as (line, _):
        url = line.split()[2]
        report = json.loads(shell.run("sync", "ann.db", url, "--token", "secret", "--json", code=1))
    assert report["paused"] == ["mine"]
    assert shell.err.startswith("error: not all sessions of ann.db were synced")
    [session] = shell.json("status", "ann.db")["sessions"]
    assert session["pending"] == 1
    assert session["paused"]


def test_a_store_in_memory_says_that_nothing_lasts(shell: Shell) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "syncline.cli", "serve", "--port", "0", "--memory"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("listening on ws://")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert errors.rstrip().endswith(
        "WARNING the store is in memory: nothing lasts longer than this process"
    )


def test_a_backup_is_restored_in_a_new_epoch(shell: Shell) -> None:
    build_server(Path("server.db"))
    shell.run("backup", "--data", "server.db", "copy.db")
    restored = shell.json("restore", "--data", "server.db", "--from", "copy.db")
    assert (restored["epoch_before"], restored["epoch"]) == (1, 2)
    for file in ("server.db", "copy.db"):
        assert shell.json("verify", file)["ok"] is True
    assert shell.json("status", "server.db")["epoch"] == 2


def test_the_group_lists_its_commands(shell: Shell) -> None:
    assert isinstance(cli, click.Group)
    text = shell.run("--help")
    assert all(f"\n  {name} " in text for name in COMMANDS)
