"""Runs workloads one after the other, and keeps what each of them found out, whatever happens."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from syncline.sync import SyncError

from . import _cost, _fan_out, _first_sync, _live, _local, _offline, _reconcile, _storm
from ._bench import Bench
from ._figures import Result, Spec
from ._scale import Scale

FILES = 8192


@dataclass(frozen=True)
class Workload:
    """A name, what it does, the figures that it owes, and how it is run."""

    name: str
    title: str
    specs: Sequence[Spec]
    run: Callable[[Bench, Result], None]
    sizes: tuple[str, ...]

    @staticmethod
    def of(name: str, title: str, module: ModuleType, *sizes: str) -> Workload:
        return Workload(name, title, module.SPECS, module.run, sizes)


WORKLOADS = (
    Workload.of("w1", "offline writes, then drain", _offline, "records"),
    Workload.of("w2", "first sync", _first_sync, "records", "records_many"),
    Workload.of("w3", "one writes, one sees it", _live, "live_writes"),
    Workload.of("w4", "one writes, many see it", _fan_out, "burst", "subscribers"),
    Workload.of("w5", "three clients reconcile", _reconcile, "meeting"),
    Workload.of("w6", "costs, and how they grow", _cost, "entries", "added", "connections"),
    Workload.of("w7", "a crowd reconnects", _storm, "records", "missed", "connections"),
    Workload.of("w8", "local reads and writes", _local, "local_singles"),
)


def run_workloads(
    names: Sequence[str],
    scale: Scale,
    runs: int,
    *,
    full: bool = False,
    url: str | None = None,
    token: str | None = None,
    say: Callable[[str], None] = lambda sentence: None,
) -> Iterator[Result]:
    """Each workload's result, as soon as it is there. All files are gone at the end.

    A workload that fails has its reason among its problems, and the others go on.
    """
    _allow_many_files()
    with _sigterm_is_an_interrupt(), tempfile.TemporaryDirectory(prefix="syncline-bench-") as name:
        bench = Bench(scale, runs, Path(name), full, url, token, say)
        for workload in WORKLOADS:
            if workload.name in names:
                yield run_one(workload, bench)


def run_one(workload: Workload, bench: Bench) -> Result:
    """Run one workload. Whatever goes wrong in it is among the result's problems."""
    sizes = {name: getattr(bench.scale, name) for name in workload.sizes}
    result = Result(workload.name, workload.title, workload.specs, sizes)
    began = time.perf_counter()
    try:
        workload.run(bench, result)
    except (SyncError, OSError) as error:
        result.problems.append(f"{workload.name} was not finished: {error}")
    result.seconds = time.perf_counter() - began
    return result


def _allow_many_files() -> None:
    """A thousand connections need as many descriptors; many systems start with room for fewer."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def _sigterm_is_an_interrupt() -> Iterator[None]:
    """SIGTERM ends everything in order, like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before: Any = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
