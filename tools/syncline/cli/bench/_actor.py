"""Processes that play a part when they are told to: clients and crowds, each with a pipe to us.

They are forked from one process that has everything imported (where the system can fork), so that
fifty of them start in a moment. A part is a class; its methods are called by name, with plain
values. Whatever one of them prints or dies of is in a file of its own, and in the error here.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from types import ModuleType
from typing import Any

from syncline.sync import LocalError, SyncError, TimedOut

ANSWER_S_MAX = 600.0
CHECK_S = 0.25
"""How often somebody who waits for an answer looks whether all others are alive."""
END_S_MAX = 20.0
SAID_CHARS_MAX = 3000
PRELOADED = ("_actor", "_device", "_floor_part", "_bare", "_crowd", "_meter")
_PACKAGE = __package__ or ""


def _context() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"{_PACKAGE}.{name}" for name in PRELOADED])
    return context


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Else each child would import the whole command line anew, and hold it in its memory."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class Actor:
    """A process that plays ``part`` (``module:Class`` of this package), called ``name``."""

    def __init__(self, name: str, part: str, log: Path, check: Callable[[], None]) -> None:
        self.name = name
        self._log = log
        self._check = check
        self._pipe, theirs = multiprocessing.Pipe()
        context = _context()
        self._process = context.Process(
            target=_play, args=(part, theirs, str(log)), name=name, daemon=True
        )
        with _no_main_module():
            self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        return int(self._process.pid or 0)

    def ask(self, method: str, *args: object) -> Any:
        """Call a method there and wait for what it returns.

        Raises LocalError when it fails or the process dies, here or elsewhere, and TimedOut.
        """
        self.tell(method, *args)
        return self.answer()

    def tell(self, method: str, *args: object) -> None:
        """Call a method there; ``answer`` is to fetch what it returns."""
        try:
            self._pipe.send((method, args))
        except OSError as error:
            raise self._died() from error

    def answer(self) -> Any:
        end = time.monotonic() + ANSWER_S_MAX
        while not wait_for([self._pipe], CHECK_S):
            self._check()
            if time.monotonic() > end:
                raise TimedOut(f"{self.name} has not answered for {ANSWER_S_MAX:.0f} s")
        try:
            worked, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._check()
            raise self._died() from error
        if not worked:
            raise LocalError(f"{self.name} failed: {value}")
        return value

    def alive(self) -> None:
        """Raises LocalError, with its own words, when the process has ended by itself."""
        if self._process.exitcode is not None:
            raise self._died()

    def _died(self) -> LocalError:
        self._process.join(END_S_MAX)
        said = ""
        with contextlib.suppress(OSError):
            said = self._log.read_text(encoding="utf-8", errors="replace").strip()
        said = said[-SAID_CHARS_MAX:] or "it said nothing"
        return LocalError(f"{self.name} ended with code {self._process.exitcode}: {said}")

    def leave(self) -> None:
        """Let it close its files and go, without waiting for that; ``end`` waits."""
        self._pipe.close()

    def end(self) -> None:
        """Let it close its files and go; it is killed when it does not."""
        self.leave()
        self._process.join(END_S_MAX)
        self._forget()

    def kill(self) -> None:
        """End it at once, whatever it is at."""
        self._pipe.close()
        self._forget()

    def _forget(self) -> None:
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._process.close()


def _play(part: str, pipe: Connection, log: str) -> None:
    # Ctrl-C reaches the whole group; who gave the word ends everybody, in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(errors, sys.stderr.fileno() if sys.stderr is not None else 2)
    os.close(errors)
    module, _, name = part.partition(":")
    player = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name)()
    try:
        while True:
            try:
                method, args = pipe.recv()
            except (EOFError, OSError):
                return
            try:
                reply = (True, getattr(player, method)(*args))
            except (SyncError, OSError) as error:
                reply = (False, f"{type(error).__name__}: {error}")
            except Exception:
                reply = (False, traceback.format_exc(limit=-3))
            with contextlib.suppress(BrokenPipeError):
                pipe.send(reply)
    finally:
        player.close()


def together(actors: Iterable[Actor], method: str, *args: object) -> list[Any]:
    """Call the same method in all of them at once, and wait for all answers."""
    actors = list(actors)
    for actor in actors:
        actor.tell(method, *args)
    return [actor.answer() for actor in actors]
