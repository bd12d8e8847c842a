"""The one thread that owns the engine and its store.

It takes everything that has come in since it last looked as one batch, so that what arrives while
a commit is under way is the next commit: group commit needs no timer. Outputs are handed back in
the order they were made; house-keeping of the store comes after that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from syncline.sync import LocalError

from ._engine import ServerEngine
from ._peer import Input, Output, Received, Tick
from ._store import Store

GROUP_BYTES_MAX = 16 << 20
"""What one batch takes; the rest is the next batch, so that nobody waits long for an answer."""
WAIT_S_MAX = 1.0
"""Deadlines are of the wall clock, which may be set: so often they are looked at again."""

T = TypeVar("T")

_log = logging.getLogger("syncline.server")


def now_us() -> int:
    """Microseconds since the Unix epoch, UTC."""
    return time.time_ns() // 1000


class Worker:
    """``deliver`` gets the outputs, ``failed`` the error that ended the thread, both in it."""

    def __init__(
        self,
        engine: ServerEngine,
        store: Store,
        deliver: Callable[[list[Output]], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._engine = engine
        self._store = store
        self._deliver = deliver
        self._failed = failed
        self._inputs: deque[Input] = deque()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="syncline-server-engine")

    def start(self) -> None:
        self._thread.start()

    def put(self, item: Input) -> None:
        """Something happened. From any thread."""
        with self._changed:
            self._inputs.append(item)
            self._changed.notify()

    def call(self, work: Callable[[], T]) -> T:
        """Run this in the thread that owns the store, between two batches; what it returns.

        From any other thread. Raises what it raises, and LocalError when the thread has ended.
        """
        done: Future[T] = Future()
        with self._changed:
            if self._ended:
                raise LocalError("the server does not run (any more)")
            self._calls.append((work, done))
            self._changed.notify()
        return done.result()

    def stop(self) -> None:
        """End after the batch under way; the store is then checkpointed and closed."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            while (batch := self._next_batch()) is not None:
                self._run_calls()
                self._deliver(self._engine.process(batch, now_us()))
                self._checkpoint()
        except BaseException as error:
            _log.exception("the server's engine failed")
            self._failed(error)
        finally:
            self._end_calls()
            self._checkpoint()
            self._store.close()

    def _run_calls(self) -> None:
        while self._calls:
            work, done = self._calls.popleft()
            try:
                done.set_result(work())
            except BaseException as error:
                # It is the caller's: whoever waits for the answer gets it.
                done.set_exception(error)
                if not isinstance(error, Exception):
                    raise

    def _end_calls(self) -> None:
        with self._changed:
            self._ended = True
            for _, done in self._calls:
                done.set_exception(LocalError("the server has stopped"))
            self._calls.clear()

    def _next_batch(self) -> list[Input] | None:
        """What has come in, a tick when a deadline has passed; None to end."""
        with self._changed:
            while not self._stopping:
                if self._inputs or self._calls:
                    return self._take()
                deadline = self._engine.next_deadline()
                wait_s = None if deadline is None else (deadline - now_us()) / 1e6
                if wait_s is not None and wait_s <= 0:
                    return [Tick()]
                self._changed.wait(None if wait_s is None else min(wait_s, WAIT_S_MAX))
        return None

    def _take(self) -> list[Input]:
        batch: list[Input] = []
        size = 0
        while self._inputs and size < GROUP_BYTES_MAX:
            item = self._inputs.popleft()
            batch.append(item)
            if isinstance(item, Received):
                size += len(item.data)
        return batch

    def _checkpoint(self) -> None:
        try:
            self._store.checkpoint()
        except Exception as error:
            # It is tried again after the next batch; commits do not depend on it.
            _log.warning("the store's checkpoint failed: %s", error)
