"""``syncline chat``: one conversation on several devices, with an agent that answers by script.

The main thread reads lines, a second one prints what is new in the transcript, a third one runs
turns. They meet in the replica's file only, so what was sent is kept whatever ends the command.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ._output import cell

if TYPE_CHECKING:
    from syncline.client import Connection, Replica
    from syncline.client.sessions import Agent, EventLog, ModelRequest

SESSION = "chat"
LOOK_S = 0.2
"""How often the printer looks for news from other processes, and at the connection."""


@click.command()
@click.argument("replica")
@click.argument("url", required=False)
@click.option(
    "--token",
    envvar="SYNCLINE_TOKEN",
    metavar="TOKEN",
    help="Signs in; better given in SYNCLINE_TOKEN, which other users of the machine cannot see.",
)
@click.option("--session", "session_id", metavar="ID", default=SESSION, show_default=True)
@click.option(
    "--agent/--no-agent",
    "answers",
    default=True,
    help="Whether this device runs the agent; without it, messages wait for a device that does.",
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="At the end of the input: how long to wait for answers and for the server.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print each message as one JSON object on a line."
)
def chat(
    replica: str,
    url: str | None,
    token: str | None,
    session_id: str,
    answers: bool,
    wait_s: float,
    as_json: bool,
) -> None:
    """Chat in REPLICA, which is made if it is not there; with URL, synced while you type.

    A line is a message. It is durable when it was sent, online or not; everybody who has the
    session open sees it, and an agent answers it by script, once, whichever device runs it. Ends
    with the input (Ctrl-D) or Ctrl-C; what waits is sent the next time.

    \b
    Examples, with 'syncline serve --data server.db' running, in two terminals:
      syncline chat laptop.db ws://127.0.0.1:8787
      syncline chat phone.db ws://127.0.0.1:8787
    Write on the phone without a network, and later with it: the conversation is whole.
      syncline chat phone.db
      syncline chat phone.db ws://127.0.0.1:8787
    From a script:
      echo "hello" | syncline chat laptop.db --no-agent
    """
    from syncline.client.sessions import EventLog, TurnRunner, send

    with ExitStack() as stack:
        opened = stack.enter_context(_open(replica))
        session = opened.session(session_id)
        log = EventLog(session)
        connection = stack.enter_context(opened.connect(url, token=token)) if url else None
        stack.enter_context(_Printer(log, opened.client_id, connection, as_json))
        if answers:
            signal = None if connection is None else connection.signal
            runner = TurnRunner(opened, _agent(), signal=signal)
            stack.callback(runner.close)
            runner.start([session])
        for line in sys.stdin:
            if line.strip():
                send(session, line.rstrip("\n"))
        _finish(log, connection, answers, wait_s)


def _open(path: str) -> Replica:
    from syncline.client import Replica

    if Path(path).exists():
        return Replica(path, create=False)
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(path).stem).strip("-_") or "device"
    return Replica(path, client_id=f"{name[:24]}-{secrets.token_hex(2)}")


def _agent() -> Agent:
    """Answers from the conversation alone, so that every device would give the same answer."""
    from syncline.client.sessions import Agent, ScriptedResponder
    from syncline.sync.sessions import PromptUser

    def answer(request: ModelRequest) -> str:
        asked = [item.text for item in request.prompt if isinstance(item, PromptUser)]
        return f'"{asked[-1]}": that is message {len(asked)}.'

    return Agent("echo", ScriptedResponder(answer))


class _Printer:
    """Prints each message once, as it comes into the transcript, and how the connection stands."""

    def __init__(
        self, log: EventLog, me: str, connection: Connection | None, as_json: bool
    ) -> None:
        self._log = log
        self._me = me
        self._connection = connection
        self._as_json = as_json
        self._state = ""
        self._printed: set[str] = set()
        self._stream = log.stream(poll_s=LOOK_S)
        self._thread = threading.Thread(target=self._run, name="syncline-chat", daemon=True)

    def __enter__(self) -> _Printer:
        self._print_messages()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stream.close()
        self._thread.join()
        self._print_messages()

    def _run(self) -> None:
        while not self._stream.closed:
            item = self._stream.get(timeout=LOOK_S)
            self._print_state()
            if item is not None:
                self._print_messages()

    def _print_messages(self) -> None:
        for message in self._log.transcript().messages:
            if message.id in self._printed:
                continue
            self._printed.add(message.id)
            if self._as_json:
                names = ("id", "role", "client", "seq", "at", "text")
                told = {name: getattr(message, name) for name in names}
                _say(json.dumps(told, ensure_ascii=False))
                continue
            mine = message.role == "user" and message.client == self._me
            if mine and sys.stdin.isatty() and self._thread.ident is not None:
                continue  # It stands there already, as it was typed.
            who = "agent" if message.role == "agent" else message.client
            _say(f"{cell(who)}: {cell(message.text)}")

    def _print_state(self) -> None:
        if self._connection is None:
            return
        state, reason = self._connection.state.value, self._connection.reason
        if state != self._state and state in ("online", "offline", "waiting", "refused"):
            self._state = state
            click.echo(f"({state}{': ' + cell(reason) if reason else ''})", err=True)


def _say(line: str) -> None:
    click.echo(line)
    sys.stdout.flush()


def _finish(log: EventLog, connection: Connection | None, answers: bool, wait_s: float) -> None:
    """Give all that was said its answer, and its way to the server, within ``wait_s``."""
    until = time.monotonic() + wait_s
    synced = connection is None or _synced(connection, until)
    with log.stream(poll_s=LOOK_S) as news:
        while answers and _busy(log) and time.monotonic() < until:
            news.get(timeout=min(LOOK_S, max(0.0, until - time.monotonic())))
    if connection is not None and synced:
        _synced(connection, until)
    waiting = len(log.session.pending())
    if waiting:
        click.echo(f"({waiting} ops wait in the outbox for the next sync)", err=True)


def _synced(connection: Connection, until: float) -> bool:
    from syncline.sync import SyncError

    try:
        connection.wait_synced(max(0.0, until - time.monotonic()))
    except SyncError as error:
        click.echo(f"(not all is synced: {cell(str(error))})", err=True)
        return False
    return True


def _busy(log: EventLog) -> bool:
    open_ = log.open_items()
    return bool(open_.queued or open_.turn_id)
