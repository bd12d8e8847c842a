"""Settling the ops of one session within one transaction.

A ``SessionWork`` reads what it needs under the session's row lock, keeps what the ops of the group
change in memory, and writes it all at the end, so that a group costs a handful of statements. An
op changes that overlay wholly or not at all: everything that can fail is done before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from syncline.sync import (
    DELETED,
    DIGEST_BYTES,
    HEADER_COLLECTION,
    HEADER_ID,
    NO_HASH,
    OP_BYTES_MAX,
    AcceptedChange,
    Busy,
    Change,
    ClockAhead,
    Closed,
    Conflict,
    Dot,
    DotReused,
    Effect,
    Entry,
    Erase,
    Event,
    Gap,
    Malformed,
    Op,
    OpRefused,
    Outcome,
    Record,
    RecordChange,
    Refused,
    Resolve,
    SessionDeleted,
    StaleStamp,
    Stamp,
    TooLarge,
    VoidOp,
    conflicts_of,
    deletes_session,
    encode_effects,
    genesis,
    is_deleted,
    op_digest,
    running_hash,
    salt_digest,
    same_content,
    settle,
)

from ._audit import TURN_EVENTS, Author, lost_rows, refusal_row, turn_row
from ._store import (
    Head,
    Identity,
    LastOp,
    LedgerRow,
    LogRow,
    RecordKey,
    RecordRow,
    RefusalRow,
    Transaction,
)

ENTRY_BYTES_MAX = OP_BYTES_MAX + (32 << 10)
"""An entry must fit into one frame, or no replica could ever get past it."""
STATE_BYTES_MAX = OP_BYTES_MAX
"""The same for a record's state, which concurrent patches make larger than each of them is."""
REPEAT_BYTES_MAX = 2 * OP_BYTES_MAX
"""Entries in the answers to one push; small ops that name large entries must not cost more."""
LABEL_CHARS_MAX = 200
"""A label in a listing is cut here, so that a page of them fits into a frame."""
BUSY_RETRY_MS = 1000

_NO_OP = LastOp(0, NO_HASH)
_HEADER = RecordKey(HEADER_COLLECTION, HEADER_ID)
_DELETED = DELETED.encode()


@dataclass(slots=True)
class _Held:
    """A record as the group has it so far; ``bytes_bound`` is at least its encoded size."""

    record: Record | None
    bytes_bound: int
    seq: int = 0


@dataclass(slots=True)
class _Met:
    """What came of an op: the records that it leaves, its outcome, effects and conflicts."""

    records: list[tuple[RecordKey, _Held]] = field(default_factory=list)
    outcome: Outcome = Outcome.APPLIED
    effects: list[Effect | None] = field(default_factory=list)
    conflicts: list[Conflict | Closed] = field(default_factory=list)
    turns: list[tuple[int, Event]] = field(default_factory=list)
    events: int = 0


class SessionWork:
    """One session's share of a group: ``load``, then ``take`` op by op, then ``write``."""

    def __init__(
        self, tx: Transaction, session: str, store: Identity, now: int, ahead_us_max: int
    ) -> None:
        self.session = session
        self.rows: list[LogRow] = []
        self.created = False
        self._tx = tx
        self._store = store
        self._now = now
        self._stamp_max = now + ahead_us_max
        self._head = tx.head(session)
        self._last: dict[str, LastOp] = {}
        # The session's vector, as far as it was asked for: see _load_clients.
        self._vector: dict[str, int] = {}
        known = self._head
        self.previous_seq = self._seq = known.seq if known is not None else 0
        self.previous_hash = self._hash = (
            known.hash
            if known is not None
            else genesis(self._store.store_id, self._store.epoch, session)
        )
        self._label = known.label if known is not None else ""
        self._states: dict[RecordKey, bytes] = {}
        self._held: dict[RecordKey, _Held] = {}
        self._rows_by_dot: dict[Dot, LogRow] = {}
        self._rows_by_salt: dict[bytes, LogRow] = {}
        self._refusals: dict[Dot, RefusalRow] = {}
        self._conflicts: list[Conflict | Closed] = []
        self._ledger: list[LedgerRow] = []
        self._advanced: set[str] = set()
        self._deleted: bool | None = None

    @property
    def head(self) -> Head | None:
        """The head as it will be after ``write``."""
        if self._head is None:
            return None
        epoch = self._store.epoch if self.rows else self._head.epoch
        return replace(self._head, epoch=epoch, seq=self._seq, hash=self._hash, label=self._label)

    def last(self, client: str) -> LastOp:
        if client not in self._last:
            self._load_clients([client])
        return self._last[client]

    def load(
        self, ops: Iterable[Op | VoidOp], decoded: Iterable[Sequence[Change] | Exception | None]
    ) -> None:
        """Read what these ops will meet, with one read for each table.

        ``decoded`` are the changes of each. Nothing is taken that was not loaded.
        """
        keys: set[RecordKey] = set()
        clients: set[str] = set()
        for changes in decoded:
            if not isinstance(changes, Exception):
                for change in changes or ():
                    if isinstance(change, RecordChange):
                        keys.add(RecordKey(change.collection, change.id))
                        clients.update(change.context)
        self._load_records(keys)
        self._load_clients(clients)
        self._load_salts([op.salt for op in ops if isinstance(op, Op)])

    def _load_records(self, keys: Iterable[RecordKey]) -> None:
        held, states = self._held, self._states
        # Every op is held against the header: nothing follows the deletion of a session.
        keys = keys if self._deleted is not None else {*keys, _HEADER}
        missing = [key for key in keys if key not in held and key not in states]
        if missing and self._head is not None:
            states.update(self._tx.records(self.session, missing))
        if self._deleted is None:
            state = states.get(_HEADER, b"")
            self._deleted = _DELETED in state and is_deleted(Record.decode(state))

    def _load_clients(self, clients: Iterable[str]) -> None:
        missing = {client for client in clients if client not in self._last}
        if not missing:
            return
        found = {} if self._head is None else self._tx.last_ops(self.session, missing)
        for client in missing:
            self._last[client] = found.get(client, _NO_OP)
        self._vector.update((client, last.n) for client, last in found.items())

    def _load_salts(self, salts: Collection[bytes]) -> None:
        if self._head is None:
            return
        salt_by_name = {salt: salt for salt in salts}
        salt_by_name.update((salt_digest(salt), salt) for salt in salts)
        for name, row in self._tx.entries_of(self.session, salt_by_name).items():
            self._rows_by_salt[salt_by_name[name]] = row

    def take(
        self, author: Author, op: Op | VoidOp, changes: Sequence[Change] | Exception | None
    ) -> OpRefused | None:
        """Settle one op; ``changes`` are those of its body, or why there are none.

        Returns the answer, None for an op that was accepted (its entry is the answer). Raises the
        refusals that are not final, and whatever is a bug; the overlay is then as it was.
        """
        last = self.last(author.client)
        if op.n <= last.n:
            return self._repeat(author, op)
        if op.n > last.n + 1:
            raise Gap(f"op {last.n + 1} comes next, not {op.n}", expected=last.n + 1)
        if isinstance(op, VoidOp):
            self._consume(RefusalRow(author.client, op.n, 0, "", {}, None), op.running)
            return self._answer(op.n, 0)
        answer = self._formerly(author, op)
        if answer is not None:
            return answer
        try:
            self._accept(author, op, changes)
        except Refused as refused:
            if not refused.final:
                raise
            return self.refuse(author, op, refused)
        return None

    def refuse(self, author: Author, op: Op, refused: Refused) -> OpRefused:
        """Refuse an op for good: its number is consumed, and a repeat gets the same answer."""
        digest = op_digest(op.salt, op.body)
        row = RefusalRow(
            author.client, op.n, refused.code, refused.reason[:4096], refused.detail, digest
        )
        self._consume(row, self._running(author, op.n, digest))
        place = (self._store.epoch, op.n)
        self._ledger.append(refusal_row(self._now, self.session, author, place, refused.code))
        return self._answer_of(op.n, row)

    def write(self) -> None:
        """Write the overlay. The transaction is the caller's to commit."""
        if self._head is None:
            return
        tx, session = self._tx, self.session
        head = self.head
        assert head is not None
        if self.rows:
            tx.append(session, self.rows)
        touched = [
            RecordRow(key.collection, key.id, held.seq, held.record.encode())
            for key, held in self._held.items()
            if held.seq and held.record is not None
        ]
        if touched:
            tx.put_records(session, touched)
        if self._conflicts:
            tx.put_conflicts(session, self._conflicts)
        if self._refusals:
            tx.put_refusals(session, self._refusals.values())
        if self._advanced:
            tx.set_last_ops(session, {client: self._last[client] for client in self._advanced})
        if head != self._head:
            tx.set_head(session, head)
        if self._ledger:
            tx.write_ledger(self._ledger)

    def relabel(self) -> None:
        """Read the label again, after an erasure of what the header says."""
        self._load_records([_HEADER])
        header = self._record(_HEADER).record
        self._label = "" if header is None else _label_of(header)

    # Ops that are not settled: repeats, and what former copies of a replica pushed.

    def _repeat(self, author: Author, op: Op | VoidOp) -> OpRefused | None:
        if isinstance(op, VoidOp):
            return self._answer(op.n, 0)
        dot = Dot(author.client, op.n)
        row = self._row_at(dot)
        if row is not None:
            entry = Entry.decode(row.entry)
            if entry.holds(op.salt, op.body):
                return self._answer(op.n, 0, row)
        else:
            refusal = self._refusal_at(dot)
            if refusal is not None and refusal.digest == op_digest(op.salt, op.body):
                return self._answer_of(op.n, refusal)
        raise DotReused(f"number {op.n} of {author.client} is another op here", n=op.n)

    def _formerly(self, author: Author, op: Op) -> OpRefused | None:
        """The answer to an op that was settled under a dot it had before; else None.

        After copies of replicas and restores of servers nobody can say under which: the salt can.
        """
        row = self._rows_by_salt.get(op.salt)
        refusal = None if op.former is None else self._refusal_at(op.former)
        if row is None and refusal is None:
            return None
        digest = op_digest(op.salt, op.body)
        if row is not None:
            if not _says_the_same(op, row):
                # Somebody took the salt of an op that the log had forgotten: its author is told.
                return self.refuse(author, op, Malformed("another op with this salt is in the log"))
            of = Dot(row.client, row.n)
            consumed = RefusalRow(author.client, op.n, 0, "", {}, digest, of)
        elif refusal is not None and refusal.code and refusal.digest == digest:
            consumed = replace(refusal, client=author.client, n=op.n)
        else:
            return None
        self._consume(consumed, self._running(author, op.n, digest))
        return self._answer_of(op.n, consumed)

    def _row_at(self, dot: Dot) -> LogRow | None:
        return self._rows_by_dot.get(dot) or self._tx.entry_at(self.session, dot)

    def _refusal_at(self, dot: Dot) -> RefusalRow | None:
        return self._refusals.get(dot) or self._tx.refusal_at(self.session, dot)

    def _answer_of(self, n: int, row: RefusalRow) -> OpRefused:
        if row.of is not None:
            return self._answer(n, 0, self._row_at(row.of))
        return OpRefused(
            session=self.session,
            n=n,
            code=row.code,
            reason=row.reason,
            detail=dict(row.detail),
            final=True,
        )

    def _answer(self, n: int, code: int, row: LogRow | None = None) -> OpRefused:
        entry, hash_ = (None, None) if row is None else (row.entry, row.hash)
        return OpRefused(session=self.session, n=n, code=code, final=True, entry=entry, hash=hash_)

    # Ops that are settled.

    def _accept(self, author: Author, op: Op, changes: Sequence[Change] | Exception | None) -> None:
        if self._deleted:
            raise SessionDeleted(f"session {self.session} is deleted", session=self.session)
        if changes is None or isinstance(changes, Exception):
            raise changes or AssertionError("an op came without its changes")
        if len(op.stamps) != len(changes):
            raise Malformed(f"{len(op.stamps)} stamps for {len(changes)} changes")
        client, n, epoch = author.client, op.n, self._store.epoch
        met = self._meet(author, op, changes)
        seq = self._seq + 1
        effects = encode_effects(op.stamps, met.effects)
        entry = Entry(epoch, seq, client, n, met.outcome, self._now, op.salt, effects, op.body)
        data = entry.encode()
        if len(data) > ENTRY_BYTES_MAX:
            raise TooLarge(
                f"the op and what it meets have {len(data)} bytes, the most is {ENTRY_BYTES_MAX}",
                bytes=len(data),
                bytes_max=ENTRY_BYTES_MAX,
            )
        digests = entry.digests
        hash_ = entry.hash(self._hash, digests)
        running = self._running(author, n, digests[:DIGEST_BYTES])
        row = LogRow(seq, hash_, client, n, met.events, data, op.salt)

        # Nothing below can fail but for the store, which rolls the whole group back.
        self._exist()
        self._seq, self._hash = seq, hash_
        self.rows.append(row)
        self._rows_by_dot[Dot(client, n)] = row
        self._rows_by_salt[op.salt] = row
        self._advance(client, LastOp(n, running))
        for key, held in met.records:
            held.seq = seq
            self._held[key] = held
            if key == _HEADER and held.record is not None:
                self._label = _label_of(held.record)
                self._deleted = is_deleted(held.record)
        if met.conflicts:
            self._conflicts += met.conflicts
            place = (epoch, seq, n)
            self._ledger += lost_rows(self._now, self.session, author, place, met.conflicts)
        for index, event in met.turns:
            at_event = (epoch, seq, index, n)
            self._ledger.append(turn_row(self._now, self.session, author, at_event, event))

    def _meet(self, author: Author, op: Op, changes: Sequence[Change]) -> _Met:
        """Settle each change against what it meets; nothing is noted of it yet."""
        met = _Met()
        for index, (change, at) in enumerate(zip(changes, op.stamps, strict=True)):
            stamp = Stamp(at, author.client, op.n)
            effect = None
            if isinstance(change, RecordChange):
                key = RecordKey(change.collection, change.id)
                held = self._record(key)
                record = held.record
                if at > self._stamp_max and (record is None or at > record.life.updated_at + 1):
                    raise self._ahead(at)
                outcome, after, effect = settle(record, change, stamp, self._vector)
                if record is not None and deletes_session(change):
                    _check_last(record, stamp)
                bound = held.bytes_bound + len(op.body)
                if bound > STATE_BYTES_MAX:
                    bound = self._measured(key, after)
                met.records.append((key, _Held(after, bound)))
                met.outcome = max(met.outcome, outcome)
            elif type(change) is Event:
                if at > self._stamp_max:
                    raise self._ahead(at)
                if change.type in TURN_EVENTS:
                    met.turns.append((index, change))
                met.events += 1
            elif type(change) is Erase and author.client != self._store.store_id:
                raise Malformed("only the server itself erases")
            met.effects.append(effect)
            # A resolve's stamp decides nothing, so no clock can make it wrong.
            if effect is not None or type(change) is Resolve:
                met.conflicts += conflicts_of(AcceptedChange(change, stamp, effect))
        return met

    def _record(self, key: RecordKey) -> _Held:
        held = self._held.get(key)
        if held is None:
            state = self._states.get(key)
            record = None if state is None else Record.decode(state)
            held = self._held[key] = _Held(record, 0 if state is None else len(state))
        return held

    @staticmethod
    def _measured(key: RecordKey, record: Record) -> int:
        size = len(record.encode())
        if size > STATE_BYTES_MAX:
            raise TooLarge(
                f"the record {key.collection}/{key.id} would have {size} bytes, "
                f"the most is {STATE_BYTES_MAX}",
                bytes=size,
                bytes_max=STATE_BYTES_MAX,
            )
        return size

    def _ahead(self, at: int) -> ClockAhead:
        return ClockAhead(
            f"the stamp is {(at - self._now) // 1_000_000} s ahead of the server's clock",
            server_clock=self._now,
        )

    # Numbers.

    def _exist(self) -> None:
        if self._head is None:
            self._head = self._tx.create(self.session, self._hash, self._now)
            self.created = True

    def _running(self, author: Author, n: int, digest: bytes) -> bytes:
        return running_hash(self.last(author.client).running, n, digest)

    def _consume(self, row: RefusalRow, running: bytes) -> None:
        self._exist()
        self._refusals[Dot(row.client, row.n)] = row
        self._advance(row.client, LastOp(row.n, running))

    def _advance(self, client: str, last: LastOp) -> None:
        self._last[client] = last
        self._vector[client] = last.n
        self._advanced.add(client)


def _says_the_same(op: Op, row: LogRow) -> bool:
    entry = Entry.decode(row.entry)
    try:
        # What an erased entry said, its salt alone can tell.
        return entry.erased or same_content(op.body, entry.body)
    except Refused:
        return False


def _check_last(header: Record, stamp: Stamp) -> None:
    """A deletion wins over everything: its author stamps it above what is there."""
    if stamp <= header.life:
        raise StaleStamp(
            "a deletion must have the newest stamp of its session's header",
            updated_at=stamp.updated_at,
            seen=header.life.updated_at,
        )


def busy(reason: str) -> Busy:
    """The refusal of what may go better in a while."""
    return Busy(reason, retry_after_ms=BUSY_RETRY_MS)


def _label_of(header: Record) -> str:
    label = header.fields.get("label")
    return label[:LABEL_CHARS_MAX] if isinstance(label, str) else ""
