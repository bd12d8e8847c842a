"""A replica's own numbers: those that are settled, those that wait, and what shows because of them.

Every own op advances a running hash, so that number, salt and body of each are held by the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from ._codec import (
    HASH_BYTES,
    NO_HASH,
    NUMBER_MAX,
    SALT_BYTES,
    Vector,
    decode_exact,
    is_number,
    need,
    op_digest,
    running_after,
)
from ._file import BLOB, BLOB_OR_NULL, INT, INT_OR_NULL, TEXT, TEXT_OR_NULL, DataFile
from ._log import Change, Entry, read_body
from ._replay import RecordKey
from ._report import Problems
from ._settling import State, settle

OUTBOX = {
    "n": INT,
    "salt": BLOB_OR_NULL,
    "stamps": BLOB_OR_NULL,
    "body": BLOB_OR_NULL,
    "running": BLOB,
    "former_client": TEXT_OR_NULL,
    "former_n": INT_OR_NULL,
}
REFUSED = {
    "salt": BLOB,
    "client": TEXT,
    "n": INT,
    "code": INT,
    "detail": BLOB,
    "stamps": BLOB,
    "body": BLOB,
}


@dataclass(frozen=True, slots=True)
class Pending:
    """An op of the outbox: its changes, each with its ``updatedAt``."""

    n: int
    changes: list[tuple[Change, int]]


@dataclass
class Outbox:
    """The own numbers of one session of a replica."""

    problems: Problems
    client: str
    settled_n: int
    settled_running: bytes

    def check_settled(
        self, file: DataFile, session: int, own: list[tuple[Entry, int, bytes]]
    ) -> None:
        """Numbers up to ``settled_n``: each running hash must follow from the one before it.

        A number that was consumed without an entry has its digest only in the refused table; where
        that is not known, and where a number is not held any more, the chain begins anew.
        """
        digests = {n: entry.digest for entry, n, _ in own}
        runnings = {n: running for _, n, running in own}
        columns = {"n": INT, "running": BLOB}
        for n, running in file.rows("syncline_consumed", columns, session=session):
            if n in runnings:
                self.problems.add(f"syncline_consumed row {n} is an entry of the log too")
            runnings[n] = running
        for n, digest in self._refused(file, session):
            digests.setdefault(n, digest)
        runnings.setdefault(self.settled_n, self.settled_running)
        runnings[0] = NO_HASH
        if runnings[self.settled_n] != self.settled_running:
            self.problems.add("the session's running hash is not that of its last settled op")
        for n, running in sorted(runnings.items()):
            if len(running) != HASH_BYTES or n > self.settled_n:
                self.problems.add(f"own op {n} has no whole running hash or is not settled")
            elif n - 1 in runnings and n in digests:
                if running_after(runnings[n - 1], n, digests[n]) != running:
                    self.problems.add(f"own op {n} does not have the running hash it gives")

    def _refused(self, file: DataFile, session: int) -> list[tuple[int, bytes]]:
        found = []
        rows = file.rows("syncline_refused", REFUSED, session=session)
        for salt, client, n, code, detail, stamps, body in rows:
            with self.problems.named(f"syncline_refused row {salt.hex()}"):
                need(len(salt) == SALT_BYTES and n >= 1 and code > 0, "has no salt, number or code")
                decode_exact(detail)
                decode_exact(stamps)
                if client == self.client:
                    found.append((n, op_digest(salt, body)))
        return found

    def read_pending(self, file: DataFile, session: int) -> list[Pending]:
        """The ops that wait, dense above ``settled_n``, each running hash checked."""
        pending = []
        before, running = self.settled_n, self.settled_running
        rows = file.rows("syncline_outbox", OUTBOX, session=session)
        for n, salt, stamps, body, after, former_client, former_n in rows:
            name = f"syncline_outbox row {n}"
            if n != before + 1:
                self.problems.add(f"{name} follows {before}: the outbox is not dense")
            with self.problems.named(name):
                need(1 <= n <= NUMBER_MAX, "has a number out of bounds")
                need(len(after) == HASH_BYTES, "has no whole running hash")
                need((former_client is None) == (former_n is None), "names half a former op")
                parts = [part is None for part in (salt, stamps, body)]
                need(all(parts) or not any(parts), "is a void number by half")
                if body is not None:
                    expected = running_after(running, n, op_digest(salt, body))
                    need(after == expected, "does not have the running hash that its bytes give")
                    need(len(salt) == SALT_BYTES, "has a salt of the wrong length")
                    pending.append(_read_pending(n, stamps, body))
            before, running = n, after
        return pending


def _read_pending(n: int, stamps_row: bytes, body: bytes) -> Pending:
    stamps, changes = decode_exact(stamps_row), read_body(body)
    need(
        type(stamps) is list
        and len(stamps) == len(changes)
        and all(is_number(at, 0) for at in stamps),
        "has stamps that do not fit its changes",
    )
    return Pending(n, list(zip(changes, stamps, strict=True)))


def check_visible(
    problems: Problems,
    client: str,
    bases: dict[RecordKey, State],
    shown: dict[RecordKey, bytes],
    same: set[RecordKey],
    pending: list[Pending],
    vector: Vector,
) -> None:
    """What shows must be the base with the pending ops settled on top.

    ``same`` are the records whose row says that it shows the base itself; no pending op may touch
    one of these in a way that shows.

    An op is shown when it is written and settled again when its base moves; in between, the log may
    lack what its context names. So the state with the context cut to the log and the state with
    the whole context are both right. Records of an op that would be refused are left out.
    """
    touched = {
        (change.collection, change.id) for op in pending for change, _ in op.changes if change.edits
    }
    predicted = [_predict(client, bases, pending, seen) for seen in (vector, None)]
    for key in sorted({*shown, *touched}):
        if any(key in unsure for _, unsure in predicted):
            continue
        states = [states.get(key) for states, _ in predicted]
        if shown.get(key, b"") not in [
            b"" if state is None else state.encode() for state in states
        ]:
            problems.add(
                f"syncline_records row {key[0]!a}/{key[1]!a} does not show its base with the "
                "pending ops on top"
            )


def _predict(
    client: str, bases: dict[RecordKey, State], pending: list[Pending], vector: Vector | None
) -> tuple[dict[RecordKey, State], set[RecordKey]]:
    shown = dict(bases)
    unsure: set[RecordKey] = set()
    for op in pending:
        edits = [(change, at) for change, at in op.changes if change.edits]
        for change, at in edits:
            key = (change.collection, change.id)
            state = shown.get(key)
            if state is not None and state.vector.get(client, 0) >= op.n:
                continue  # A healing put the op back into the outbox; the base has it already.
            held = {**(change.context if vector is None else vector), client: op.n - 1}
            try:
                shown[key] = settle(state, change, (at, client, op.n), held).state
            except ValueError:
                unsure.update((other.collection, other.id) for other, _ in edits)
    return shown, unsure
