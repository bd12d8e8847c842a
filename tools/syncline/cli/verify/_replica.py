"""A replica's file: the history it holds, its numbers and outbox, what the log says and what shows.

With the whole history (floor 0) the log is played again and must give the base of every record.
Above a floor only the chain can be walked, and states can only be checked for their form.
"""

from __future__ import annotations

from typing import Any

from ._chain import Chain
from ._codec import NUMBER_MAX, Vector, decode_exact, need, read_vector
from ._file import BLOB, BLOB_OR_NULL, INT, INT_OR_NULL, TEXT, DataFile
from ._log import Entry
from ._materialised import check_conflicts, check_records
from ._outbox import Outbox, Pending, check_visible
from ._replay import RecordKey, Replay
from ._report import Problems, Report, SessionReport
from ._settling import read_state

SESSION = {
    "session": INT,
    "id": TEXT,
    "gen": INT,
    "epoch": INT,
    "seq": INT,
    "hash": BLOB_OR_NULL,
    "floor": INT,
    "floor_hash": BLOB_OR_NULL,
    "settled_n": INT,
    "settled_running": BLOB,
    "vector": BLOB,
}
ENTRY = {
    "seq": INT,
    "hash": BLOB,
    "events": INT,
    "entry": BLOB,
    "salt": BLOB_OR_NULL,
    "n": INT_OR_NULL,
    "running": BLOB_OR_NULL,
}
RECORD = {
    "collection": TEXT,
    "id": TEXT,
    "alive": INT,
    "seq": INT,
    "state": BLOB,
    "base": BLOB_OR_NULL,
}


def check_replica(file: DataFile, report: Report) -> None:
    """Everything in a replica's file."""
    meta = dict(file.rows("syncline_meta", {"key": TEXT, "value": (int, str, bytes, type(None))}))
    client = meta.get("client")
    if type(client) is not str:
        report.problems.add("syncline_meta has no client id")
        client = ""
    numbers = set()
    for row in file.rows("syncline_sessions", SESSION):
        numbers.add(row[0])
        report.sessions.append(_Session(file, client, row).check())
    for table in ("syncline_outbox", "syncline_entries", "syncline_consumed", "syncline_refused"):
        for (number,) in file.rows(f"(SELECT DISTINCT session FROM {table})", {"session": INT}):
            if number not in numbers:
                report.problems.add(f"{table} has rows of session number {number}, which is none")


class _Session:
    """One session of the replica and its row."""

    def __init__(self, file: DataFile, client: str, row: tuple[Any, ...]) -> None:
        self._file = file
        self._client = client
        self._number, id_, self._gen, epoch, seq, self._hash = row[:6]
        self._floor, self._floor_hash = row[6:8]
        self._settled_n, self._settled_running, self._vector_row = row[8:]
        self._report = SessionReport(id_, epoch, seq, self._hash)

    @property
    def _problems(self) -> Problems:
        return self._report.problems

    def check(self) -> SessionReport:
        vector: Vector = {}
        with self._problems.named("the session's vector"):
            vector = read_vector(decode_exact(self._vector_row))
        chain, own = self._chain(vector)
        outbox = Outbox(self._problems, self._client, self._settled_n, self._settled_running)
        outbox.check_settled(self._file, self._number, own)
        pending = outbox.read_pending(self._file, self._number)
        self._report.pending = len(pending)
        self._check_records(chain.replay, pending, vector)
        columns = {"id": TEXT, "closed": INT, "conflict": BLOB}
        conflicts = self._file.rows("syncline_conflicts", columns, gen=self._gen)
        check_conflicts(self._report, "syncline_conflicts", conflicts, chain.replay)
        return self._report

    def _chain(self, vector: Vector) -> tuple[Chain, list[tuple[Entry, int, bytes]]]:
        """The history above the floor, and the own ops in it with number and running hash."""
        problems, own = self._problems, []
        whole = self._floor == 0
        replay = Replay(lambda client, known: NUMBER_MAX, problems.add) if whole else None
        chain = Chain(self._report, "syncline_entries", self._floor, self._floor_hash, replay)
        if self._hash is not None and self._floor_hash is None:
            problems.add("the session has a hash at its head and none at its floor")
        rows = self._file.rows("syncline_entries", ENTRY, session=self._number)
        for seq, hash_, events, data, salt, n, running in rows:
            if seq <= self._floor:
                continue  # Kept of an older history: own entries, or what is being fetched.
            entry = chain.step(seq, hash_, events, data)
            if entry is None:
                continue
            name = f"syncline_entries row {seq}"
            if salt is not None and salt != entry.salt:
                problems.add(f"{name} has another salt than its entry")
            known = salt is not None or entry.erased
            if (n is None) != (running is None) or (n is not None and not known):
                problems.add(f"{name} is an own op by half")
            if n is not None and running is not None:
                own.append((entry, n, running))
                if n != entry.n:
                    problems.add(f"{name} is own op {n}, its entry is op {entry.n}")
            if entry.n > vector.get(entry.client, 0):
                problems.add(f"{name} is above the session's vector")
        chain.ends_at(self._report.epoch, self._report.seq, self._hash, all_named=False)
        return chain, own

    def _check_records(self, replay: Replay | None, pending: list[Pending], vector: Vector) -> None:
        rows = list(self._file.rows("syncline_records", RECORD, 2, gen=self._gen))
        canonical = [
            (collection, id_, seq, state if base is None else base)
            for collection, id_, _, seq, state, base in rows
        ]
        held = [row for row in canonical if row[3]]
        bases = check_records(self._report, "syncline_records", held, replay)
        shown: dict[RecordKey, bytes] = {}
        same = set()
        for collection, id_, alive, _, data, base in rows:
            key, name = (collection, id_), f"syncline_records row {collection!a}/{id_!a}"
            shown[key] = data
            if base is None:
                same.add(key)
            with self._problems.named(name):
                state = bases.get(key) if base is None else read_state(data) if data else None
                need(alive == (state is not None and state.alive), "tells life from death wrongly")
        check_visible(self._problems, self._client, bases, shown, same, pending, vector)
