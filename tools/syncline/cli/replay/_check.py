"""What a play came to, worked out from its closed files alone.

Everything here comes from the verifier, which shares no code with client and server; of the history
only the counts are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from syncline.cli.verify import Report, compare_files, verify_file

from ._history import History
from ._player import Played

POOL_FILES_MIN = 16
"""Fewer are verified sooner than other processes are started."""


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of the server's file, and whether all files hold and agree.

    ``converged``: every replica stands at the server's head with an equal state and an empty
    outbox, and the server's log has every write of the history. ``verified``: every hash, number,
    record and row of every file was recomputed. ``problems`` says what is not so.
    """

    entries: int
    alive: int
    concurrent: int | None
    lost: int | None
    converged: bool
    verified: bool
    sha256: str
    problems: tuple[str, ...]


def check(history: History, played: Played) -> Result:
    """Verify the server's and every replica's file, and compare them."""
    files = [played.server, *played.replicas]
    reports = _verified(files)
    damage = [
        f"{report.path}: {problem}" for report in reports for problem in report.all_problems()
    ]
    apart = compare_files(played.server, played.replicas)
    apart += _incomplete(history, reports)
    session = reports[0].sessions[0] if reports[0].sessions else None
    return Result(
        entries=session.entries if session else 0,
        alive=session.alive if session else 0,
        concurrent=session.concurrent if session else 0,
        lost=session.lost if session else 0,
        converged=not apart,
        verified=not damage and all(report.ok for report in reports),
        sha256=session.sha256 if session else "",
        problems=(*damage, *apart),
    )


def _verified(files: Sequence[Path]) -> list[Report]:
    if len(files) < POOL_FILES_MIN:
        return [verify_file(path) for path in files]
    # A fresh interpreter each: forking a process that has had threads is not safe.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        return list(pool.map(verify_file, files))


def _incomplete(history: History, reports: Sequence[Report]) -> list[str]:
    """Equal files are not enough: they must hold the whole history, and nothing may wait."""
    server, *_ = reports
    entries = sum(session.entries for session in server.sessions)
    problems = []
    if entries != history.writes:
        problems.append(f"{server.path} holds {entries} of {history.writes} writes")
    for report in reports:
        pending = sum(session.pending for session in report.sessions)
        if pending:
            problems.append(f"{report.path} has {pending} writes that wait")
    return problems
