"""``syncline chat``: two terminals, one session, one of them offline; the conversation is whole."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.system.support import ROOT, ServerProcess, command

from syncline.client import Replica
from syncline.client.sessions import EventLog


def chat(
    folder: Path, replica: str, *words: str, lines: str = ""
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command("chat", str(folder / replica), *words),
        input=lines,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def conversation(path: Path) -> list[tuple[str, str]]:
    with Replica(path, create=False) as replica:
        log = EventLog(replica.session("chat", create=False))
        return [(message.role, message.text) for message in log.transcript().messages]


def test_one_was_offline_and_the_conversation_is_whole_when_it_returns(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "server.db")
    try:
        first = chat(tmp_path, "laptop.db", server.url, lines="hello\n")
        assert first.stdout.splitlines()[-1] == 'agent: "hello": that is message 1.'
        chat(tmp_path, "phone.db", server.url, "--no-agent")
        # The phone is offline, and its message waits; the laptop goes on meanwhile.
        away = chat(tmp_path, "phone.db", "--no-agent", lines="from the train\n")
        assert "wait in the outbox" in away.stderr
        chat(tmp_path, "laptop.db", server.url, lines="at home\n")
        chat(tmp_path, "phone.db", server.url, "--no-agent")
        chat(tmp_path, "laptop.db", server.url)
        chat(tmp_path, "phone.db", server.url, "--no-agent")
    finally:
        server.stop()
    whole = conversation(tmp_path / "laptop.db")
    assert conversation(tmp_path / "phone.db") == whole
    assert whole == [
        ("user", "hello"),
        ("agent", '"hello": that is message 1.'),
        ("user", "at home"),
        ("agent", '"at home": that is message 2.'),
        ("user", "from the train"),
        ("agent", '"from the train": that is message 3.'),
    ]


def test_without_a_server_the_agent_answers_here_and_what_was_said_is_shown_again(
    tmp_path: Path,
) -> None:
    chat(tmp_path, "a.db", lines="one\n\ntwo\n")
    as_json = chat(tmp_path, "a.db", "--json").stdout.splitlines()
    assert {json.loads(line)["role"] for line in as_json} == {"user", "agent"}
    again = chat(tmp_path, "a.db")
    said = [line.split(": ", 1)[1] for line in again.stdout.splitlines()]
    assert sorted(said) == sorted(
        ["one", '"one": that is message 1.', "two", '"two": that is message 2.']
    )
