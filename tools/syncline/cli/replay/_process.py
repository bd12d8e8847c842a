"""A real server process: started, found by the line it announces itself with, stopped in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from syncline.sync import LocalError

START_S_MAX = 60.0
STOP_S_MAX = 60.0
LOG_CHARS_MAX = 2000
"""What an error quotes of the server's own words."""

_ANNOUNCED = "listening on "


class ServerProcess:
    """``syncline serve`` on a data file, on a port of this machine, while the block runs.

    ``port`` 0 is any free one; ``program`` is another module that takes the same words and
    announces itself by the same line. What it has to say goes to ``log``. SIGTERM to this process
    ends the block like Ctrl-C, so that no server is left behind; Ctrl-C does not reach the server,
    which ends last. Raises LocalError when the server does not start, or end, in order.
    """

    def __init__(
        self,
        data: Path,
        log: Path,
        *,
        port: int = 0,
        program: tuple[str, ...] = ("syncline.cli", "serve"),
    ) -> None:
        self._data = data
        self._log = log
        self._port = port
        self._program = program
        self._process: subprocess.Popen[str] | None = None
        self._before: Any = None
        self.url = ""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def check(self) -> None:
        """Raises LocalError, with its own words, when the server has ended by itself."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            raise LocalError(f"the server ended with code {code}: {self._said()}")

    def __enter__(self) -> Self:
        # A token would close the server to devices that bring none.
        env = {name: value for name, value in os.environ.items() if name != "SYNCLINE_TOKEN"}
        command = [sys.executable, "-m", *self._program]
        command += ["--data", str(self._data), "--port", str(self._port)]
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, _interrupt)
        with open(self._log, "w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                text=True, env=env, start_new_session=True,
            )  # fmt: skip
        try:
            self.url = self._announced(self._process)
        except BaseException:
            self._kill()
            raise
        return self

    def _announced(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        # A server that never speaks is killed, which ends the read.
        timer = threading.Timer(START_S_MAX, process.kill)
        timer.start()
        try:
            for line in process.stdout:
                if line.startswith(_ANNOUNCED):
                    return line.removeprefix(_ANNOUNCED).split()[0]
        finally:
            timer.cancel()
        raise LocalError(f"the server did not start: {self._said()}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is None:
            return
        try:
            code = self._stop()
        finally:
            self._kill()
        if code and error is None:
            raise LocalError(f"the server ended with code {code}: {self._said()}")

    def stop(self) -> None:
        """End it before the block does. Safe to call twice."""
        self.__exit__(None, None, None)

    def _stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        try:
            return self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            raise LocalError(f"the server did not end within {STOP_S_MAX:.0f} s") from None

    def _kill(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._process = None
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def _said(self) -> str:
        said = self._log.read_text(encoding="utf-8", errors="replace").strip()
        return said[-LOG_CHARS_MAX:] or "it said nothing"


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
