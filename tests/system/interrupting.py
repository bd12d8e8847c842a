"""Clients that are interrupted: SIGINT's exception at a chosen statement, real signals at any time.

``Interrupting`` is a connection whose statements raise KeyboardInterrupt just before or just after
they ran, which is where Python delivers a signal that came while SQLite was at work. The rest runs
in the children of ``crashing.Crasher``, where a timer raises KeyboardInterrupt in the main thread.
"""

from __future__ import annotations

import signal
import sqlite3
import threading
from pathlib import Path
from types import FrameType
from typing import Any


class Interrupting(sqlite3.Connection):
    """Counts the main thread's statements down, and interrupts at zero, once."""

    left = -1
    after = False
    thread = threading.main_thread()

    def execute(self, *args: Any) -> sqlite3.Cursor:
        due = self._count()
        if due and not Interrupting.after:
            raise KeyboardInterrupt
        cursor = super().execute(*args)
        if due:
            raise KeyboardInterrupt
        return cursor

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        due = self._count()
        if due and not Interrupting.after:
            raise KeyboardInterrupt
        cursor = super().executemany(*args)
        if due:
            raise KeyboardInterrupt
        return cursor

    def _count(self) -> bool:
        if threading.current_thread() is not Interrupting.thread:
            return False
        Interrupting.left -= 1
        return Interrupting.left == -1


def connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        path, timeout=30, isolation_level=None, check_same_thread=False, factory=Interrupting
    )


class Interrupts:
    """Ctrl-C by a timer of this process: ``times`` interrupts, the first after ``first_s``."""

    def __init__(self) -> None:
        self._left = 0
        signal.signal(signal.SIGALRM, self._interrupt)

    def begin(self, first_s: float, again_s: float = 0.0) -> None:
        self._left = 2 if again_s else 1
        signal.setitimer(signal.ITIMER_REAL, first_s, again_s)

    def end(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._left = 0

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._left == 0:
            return
        self._left -= 1
        if self._left == 0:
            signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt
