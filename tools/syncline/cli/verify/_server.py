"""A server's file: every session's log, numbers, rows and figures, then the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._chain import Chain
from ._codec import HASH_BYTES, decode_exact, genesis
from ._file import BLOB, BLOB_OR_NULL, INT, INT_OR_NULL, TEXT, TEXT_OR_NULL, DataFile, Types
from ._ledger import Recorded, check_ledger
from ._log import HEADER
from ._materialised import check_conflicts, check_records
from ._numbers import DigestByNumber, Numbers
from ._replay import Replay
from ._report import Problems, Report, SessionReport

EPOCHS_BACK_MAX = 1000
LABEL_CHARS_MAX = 200
"""A label in the list of sessions is cut here."""

PER_SESSION = ("clients", "log", "records", "conflicts", "refusals")

SESSION = {
    "session": INT,
    "id": TEXT,
    "label": TEXT,
    "genesis": BLOB,
    "epoch": INT,
    "seq": INT,
    "hash": BLOB,
    "floor": INT,
}
LOG = {"seq": INT, "hash": BLOB, "client": TEXT, "n": INT, "events": INT, "entry": BLOB}
REFUSAL = {
    "client": TEXT,
    "n": INT,
    "code": INT,
    "reason": TEXT,
    "detail": BLOB,
    "digest": BLOB_OR_NULL,
    "of_client": TEXT_OR_NULL,
    "of_n": INT_OR_NULL,
}


@dataclass
class _Store:
    id: str
    epoch: int
    recorded: Recorded = field(default_factory=Recorded)


def check_server(file: DataFile, report: Report) -> None:
    """Everything in a server's file."""
    values: dict[str, Any] = dict(file.rows("store", {"key": TEXT, "value": (str, int, bytes)}))
    store_id, epoch = values.get("store_id"), values.get("epoch")
    if type(store_id) is not str or type(epoch) is not int or epoch < 1:
        report.problems.add("store has no store_id of text, or no epoch of 1 or more")
        store_id, epoch = "", 1
    store = _Store(store_id, epoch)
    for client, incarnation in file.rows("devices", {"client": TEXT, "incarnation": INT}):
        if incarnation < 1:
            report.problems.add(f"devices row {client!a} has incarnation {incarnation}")
    numbers = set()
    for row in file.rows("sessions", SESSION):
        numbers.add(row[0])
        report.sessions.append(_Session(file, store, row).check())
    for table in PER_SESSION:
        for (number,) in file.rows(f"(SELECT DISTINCT session FROM {table})", {"session": INT}):
            if number not in numbers:
                report.problems.add(f"{table} has rows of session number {number}, which is none")
    check_ledger(file, report.problems, store.recorded)


class _Session:
    """One session of the file and its row in ``sessions``."""

    def __init__(self, file: DataFile, store: _Store, row: tuple[Any, ...]) -> None:
        self._file = file
        self._store = store
        self.number, self.id, self._label, self._genesis, epoch, seq, head, self._floor = row
        self._report = SessionReport(self.id, epoch, seq, head)

    def check(self) -> SessionReport:
        problems = self._report.problems
        numbers = Numbers(problems, self._refusals())
        chain = self._chain(numbers)
        seen = set()
        for client, n, running in self._rows(
            "clients", {"client": TEXT, "n": INT, "running": BLOB}
        ):
            seen.add(client)
            numbers.ends_at(client, n, running)
        for client in sorted({*numbers.last, *numbers.refused} - seen):
            problems.add(f"clients has no row for {client!a}")
        records = {"collection": TEXT, "id": TEXT, "seq": INT, "state": BLOB}
        check_records(self._report, "records", self._rows("records", records, 2), chain.replay)
        conflicts = {"id": TEXT, "closed": INT, "conflict": BLOB}
        check_conflicts(self._report, "conflicts", self._rows("conflicts", conflicts), chain.replay)
        if chain.replay is None:
            self._store.recorded.unknown.add(self.id)
        else:
            self._store.recorded.add_lost(self.id, chain.replay.lost_values)
            self._store.recorded.add_turns(self.id, chain.replay.turns)
        return self._report

    def _rows(
        self, table: str, columns: Mapping[str, Types], keys: int = 1
    ) -> Iterator[tuple[Any, ...]]:
        return self._file.rows(table, columns, keys, session=self.number)

    def _chain(self, numbers: Numbers) -> Chain:
        problems, report = self._report.problems, self._report
        whole = self._floor == 0
        replay = Replay(numbers.ceiling, problems.add) if whole else None
        chain = Chain(report, "log", self._floor, self._genesis if whole else None, replay)
        created = report.epoch
        for seq, hash_, client, n, events, data in self._rows("log", LOG):
            entry = chain.step(seq, hash_, events, data)
            if entry is None:
                continue
            if (client, n) != (entry.client, entry.n):
                problems.add(f"log row {seq} is filed under another op than its entry names")
            if entry.epoch > self._store.epoch:
                problems.add(f"log row {seq} has an epoch above that of the store")
            created = min(created, entry.epoch)
            numbers.entry(entry)
        chain.ends_at(report.epoch, report.seq, report.head, all_named=True)
        # A session that began with a refusal can be older than its first entry.
        epochs = range(created, max(0, created - EPOCHS_BACK_MAX), -1)
        if whole and self._genesis not in (genesis(self._store.id, e, self.id) for e in epochs):
            problems.add("the genesis is not that of this store and session")
        if chain.replay is not None and self._label != _label(chain.replay):
            problems.add("the session's label is not that of its header")
        return chain

    def _refusals(self) -> dict[str, DigestByNumber]:
        """By client; each row checked for itself and noted for the ledger."""
        problems: Problems = self._report.problems
        refused: dict[str, DigestByNumber] = {}
        for client, n, code, _, detail, digest, of_client, of_n in self._rows(
            "refusals", REFUSAL, 2
        ):
            name = f"refusals row {client!a} {n}"
            with problems.named(name):
                decode_exact(detail)
            if n < 1 or (digest is not None and len(digest) != HASH_BYTES):
                problems.add(f"{name} has a number or a digest out of bounds")
            if (of_client is None) != (of_n is None) or (of_client is not None and code != 0):
                problems.add(f"{name} names half a former op, or one beside a reason")
            if (digest is None) != (code == 0 and of_client is None):
                problems.add(f"{name} is void with a digest, or not void without one")
            refused.setdefault(client, {})[n] = digest
            if code and digest is not None:
                self._store.recorded.refusals[self.id, client, n, code] = digest
        return refused


def _label(replay: Replay) -> str:
    header = replay.records.get((HEADER, "header"))
    label = None if header is None else header.values.get("label")
    return label[:LABEL_CHARS_MAX] if type(label) is str else ""
