"""A server and its replicas side by side: equal heads, equal states."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ._codec import canonical, decode
from ._file import BLOB, BLOB_OR_NULL, INT, TEXT, DataFile
from ._report import Problems

Rows = dict[tuple[str, ...], bytes]


@dataclass(frozen=True, slots=True)
class _Session:
    epoch: int
    seq: int
    hash: bytes | None
    records: Rows
    conflicts: Rows


def compare_files(server: str | Path, replicas: Iterable[str | Path]) -> list[str]:
    """What keeps these files from agreeing; empty when all do.

    Each session that a replica has synced must stand at the server's head and hold the same
    records and conflicts, byte for byte in their canonical form.
    """
    problems = Problems()
    canon = _read(server, "server", problems)
    for path in replicas:
        held = _read(path, "replica", problems)
        if canon and not held.keys() & canon.keys():
            problems.add(f"{path} holds no session of the server")
        for id_, session in held.items():
            name = f"{path} session {id_!a}"
            if id_ not in canon:
                if session.seq:
                    problems.add(f"{name} is not on the server")
                continue
            _compare(problems, name, canon[id_], session)
    return list(problems)


def _compare(problems: Problems, name: str, canon: _Session, held: _Session) -> None:
    heads = [(one.epoch, one.seq, one.hash) for one in (canon, held)]
    if heads[0] != heads[1]:
        problems.add(
            f"{name} stands at seq {held.seq} of epoch {held.epoch}, "
            f"the server at {canon.seq} of {canon.epoch}"
            + (", with another hash" if heads[0][:2] == heads[1][:2] else "")
        )
    for what in ("records", "conflicts"):
        ours, theirs = getattr(canon, what), getattr(held, what)
        for key in sorted(ours.keys() | theirs.keys()):
            if ours.get(key) != theirs.get(key):
                problems.add(f"{name} differs from the server in {what} {'/'.join(key)!a}")


def _read(path: str | Path, kind: str, problems: Problems) -> dict[str, _Session]:
    own = Problems()
    sessions: dict[str, _Session] = {}
    with DataFile(path, own) as file:
        found = file.kind()
        if found == kind:
            sessions = _sessions(file, own, "" if kind == "server" else "syncline_")
        elif found != "unknown":
            own.add(f"this is the file of a {found}, not of a {kind}")
    for problem in own:
        problems.add(f"{path}: {problem}")
    return sessions


def _sessions(file: DataFile, problems: Problems, prefix: str) -> dict[str, _Session]:
    """Of a server or a replica; a replica's canonical state is the base where it has one."""
    number, state = ("gen", "coalesce(base, state)") if prefix else ("session", "state")
    columns = {number: INT, "id": TEXT, "epoch": INT, "seq": INT, "hash": BLOB_OR_NULL}
    sessions = {}
    for key, id_, epoch, seq, head in list(file.rows(f"{prefix}sessions", columns)):
        of_session = {number: key}
        records: Rows = {}
        columns = {"collection": TEXT, "id": TEXT, state: BLOB}
        for collection, record_id, data in file.rows(f"{prefix}records", columns, 2, **of_session):
            if data:
                records[collection, record_id] = data
        conflicts: Rows = {}
        for conflict, data in file.rows(
            f"{prefix}conflicts", {"id": TEXT, "conflict": BLOB}, **of_session
        ):
            with problems.named(f"{prefix}conflicts row {conflict!a}"):
                conflicts[(conflict,)] = canonical(decode(data))
        sessions[id_] = _Session(epoch, seq, head, records, conflicts)
    return sessions
