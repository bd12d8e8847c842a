"""Comparing the materialised rows of a file with what the log makes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ._codec import decode_exact, need
from ._replay import RecordKey, Replay
from ._report import SessionReport, state_digest
from ._settling import State, read_state


def check_records(
    report: SessionReport,
    table: str,
    rows: Iterable[tuple[str, str, int, bytes]],
    replay: Replay | None,
) -> dict[RecordKey, State]:
    """The states of these rows; with a replay, each must be the one that the log makes."""
    states: dict[RecordKey, State] = {}
    for collection, record_id, seq, data in rows:
        key, name = (collection, record_id), f"{table} row {collection!a}/{record_id!a}"
        expected = None if replay is None else replay.records.get(key)
        if expected is not None and expected.encode() == data:
            states[key] = expected
        else:
            with report.problems.named(name):
                states[key] = read_state(data)
            if replay is not None:
                report.problems.add(f"{name} is not what the log makes of it")
        if replay is not None and replay.touched.get(key, seq) != seq:
            report.problems.add(f"{name} says that seq {seq} touched it last")
    for key in () if replay is None else sorted(replay.records.keys() - states.keys()):
        report.problems.add(f"{table} has no row for {key[0]!a}/{key[1]!a}")
    with report.problems.named(table):
        living = {key: state.values for key, state in states.items() if state.alive}
        report.alive = len(living)
        report.sha256 = state_digest(living)
    return states


def check_conflicts(
    report: SessionReport,
    table: str,
    rows: Iterable[tuple[str, int, bytes]],
    replay: Replay | None,
) -> None:
    """Open conflicts with the values that lost, closed ones as markers, and no others."""
    found = set()
    for id_, closed, data in rows:
        found.add(id_)
        with report.problems.named(f"{table} row {id_!a}"):
            row = decode_exact(data)
            need(closed in (0, 1), f"is neither open nor closed but {closed}")
            need(_is_conflict(row, id_, bool(closed)), "is not a conflict of that id")
            if replay is not None:
                fits = replay.conflict_fits(id_, bool(closed), row)
                need(fits, "is not what the log makes of it")
    for id_ in () if replay is None else sorted(replay.conflicts() - found):
        report.problems.add(f"{table} has no row for conflict {id_!a}")


def _is_conflict(row: Any, id_: str, closed: bool) -> bool:
    return type(row) is list and len(row) == (2 if closed else 7) and row[0] == id_
