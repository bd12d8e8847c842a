"""Erasing a person: what the clients of one principal wrote, in every session, and who they were.

Like a restore it works on a store that no server has open, so that nobody is just being sent what
is about to go. In each session one transaction rewrites the entries to their skeletons, blanks
records, conflicts and refusals, and appends the erasure: an entry of the store's own client id,
which tells replicas to do the same and names the digest of every entry that was rewritten. Run
again it finds nothing; after a restore from an older backup it must be run again.

What others wrote stays, also where they copied from the person: nobody but them can tell.

A host's ``Compliance`` says which further clients are the person's, and what a law holds back.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from syncline.sync import (
    Conflict,
    Entry,
    Erase,
    LegalHold,
    NotFound,
    Op,
    Record,
    encode_body,
    entry_digest,
    erase_conflict,
    erase_entry,
    erase_record,
    salt_digest,
)

from ._audit import Author, erasure_row
from ._compliance import Compliance
from ._coordinator import AHEAD_US_MAX
from ._settling import SessionWork
from ._sqlite_store import SqliteStore
from ._store import LogRow, RecordRow, Store

ENTRIES_PER_ERASURE = 10_000
"""So many rewritten entries one erasure names at most, which keeps it within a frame."""
PAGE_BYTES = 1 << 20
PAGE_ITEMS = 1024


@dataclass(frozen=True, slots=True)
class Erased:
    """What an erasure took: entries, records and conflicts that lost content, and identities."""

    clients: tuple[str, ...]
    sessions: tuple[str, ...]
    entries: int
    records: int
    conflicts: int
    identities: int


def erase(
    data: str | os.PathLike[str],
    subject: str,
    *,
    now: int,
    compliance: Compliance | None = None,
    progress: Callable[[str], None] | None = None,
) -> Erased:
    """Erase what ``subject`` wrote in a server's file: a principal's name, or one client id.

    ``now`` is microseconds since the Unix epoch; ``progress`` is told each session before it is
    looked through. No server may have the file open: FileInUse (3112). Raises NotFound (3113) for
    a subject of whom the file knows nothing, and LegalHold (3130), before anything is erased, when
    ``compliance`` holds one of the sessions.
    """
    with closing(SqliteStore(data, create=False)) as store:
        erased = erase_in(store, subject, now=now, compliance=compliance, progress=progress)
        scrub(store.path)
    return erased


def erase_in(
    store: Store,
    subject: str,
    *,
    now: int,
    compliance: Compliance | None = None,
    progress: Callable[[str], None] | None = None,
) -> Erased:
    """The same in an open store, which nothing else may use meanwhile."""
    rules = compliance or Compliance()
    clients, rows = _known_of(store, subject, rules)
    finds = []
    for session in _sessions(store):
        if progress is not None:
            progress(session)
        found = _find(store, session, clients)
        if found is not None:
            finds.append(found)
    if not finds and not rows:
        raise NotFound(f"nothing here is known to be by {subject}", subject=subject)
    for found in finds:
        reason = rules.hold(found.session, clients)
        if reason is not None:
            raise LegalHold(f"session {found.session} is held: {reason}", session=found.session)
    for found in finds:
        _erase_session(store, found, clients, now)
    with store.transaction() as tx:
        tx.clear_identities(rows)
        for client in clients:
            tx.set_device(client, tx.device(client)._replace(principal=None))
    return Erased(
        tuple(sorted(clients)),
        tuple(found.session for found in finds),
        sum(len(found.entries) for found in finds),
        sum(len(found.records) for found in finds),
        sum(len(found.conflicts) for found in finds),
        len(rows),
    )


def scrub(path: Path) -> None:
    """Write the file anew and empty its write-ahead log, so that no free page holds content."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = FULL")
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@dataclass(frozen=True, slots=True)
class _Found:
    """What a session holds of them, already without their values."""

    session: str
    entries: tuple[LogRow, ...]
    records: tuple[RecordRow, ...]
    conflicts: tuple[Conflict, ...]


def _known_of(store: Store, subject: str, rules: Compliance) -> tuple[frozenset[str], list[int]]:
    """The subject's client ids, and the rows of the ledger whose identity names the subject.

    Only ids that clients came with: a principal's name must not get into the log by this.
    """
    named = {subject, *rules.clients_of(subject)}
    with store.transaction() as tx:
        known = list(tx.identities())
        clients = {client for client in named if tx.device(client).incarnation}
    clients |= {
        str(who["client"])
        for _, who in known
        if who.get("principal") == subject and "client" in who
    }
    rows = [
        n for n, who in known if who.get("principal") == subject or who.get("client") in clients
    ]
    return frozenset(clients - {store.identity().store_id}), rows


def _sessions(store: Store) -> Iterator[str]:
    after = ""
    while page := store.sessions(after, PAGE_ITEMS):
        yield from (row.id for row in page)
        after = page[-1].id


def _find(store: Store, session: str, clients: Collection[str]) -> _Found | None:
    entries = tuple(_bare_entries(store, session, clients))
    records, conflicts = [], []
    after: bytes | None = b""
    vectors = {}
    while after is not None:
        part = store.snapshot(session, after, "", 1, PAGE_BYTES, PAGE_ITEMS)
        for row in part.rows:
            record = Record.decode(row.state)
            vectors[row.collection, row.id] = record.vector
            bare = erase_record(row.collection, record, clients)
            if bare is not None:
                records.append(row._replace(state=bare.encode()))
        for conflict in part.conflicts:
            if isinstance(conflict, Conflict):
                vector = vectors.get((conflict.collection, conflict.record_id), {})
                less = erase_conflict(conflict, clients, vector)
                if less is not None:
                    conflicts.append(less)
        after = part.after
    found = _Found(session, entries, tuple(records), tuple(conflicts))
    return found if entries or records or conflicts else None


def _bare_entries(store: Store, session: str, clients: Collection[str]) -> Iterator[LogRow]:
    after = 0
    while page := store.entries(session, after, PAGE_BYTES, PAGE_ITEMS):
        for row in page:
            entry = Entry.decode(row.entry)
            bare = erase_entry(entry, clients)
            if bare is not None and bare != entry:
                salt = row.salt if entry.erased else salt_digest(row.salt)
                yield row._replace(entry=bare.encode(), salt=salt)
        after = page[-1].seq


def _erase_session(store: Store, found: _Found, clients: Collection[str], now: int) -> None:
    """Everything of one session in one transaction: it is erased wholly or not at all."""
    me = Author(store.identity().store_id, "")
    with store.transaction() as tx:
        tx.rewrite(found.session, found.entries, found.conflicts, clients)
        tx.put_records(found.session, found.records)
        work = SessionWork(tx, found.session, store.identity(), now, AHEAD_US_MAX)
        for start in range(0, max(1, len(found.entries)), ENTRIES_PER_ERASURE):
            named = found.entries[start : start + ENTRIES_PER_ERASURE]
            erasure = Erase(
                tuple(sorted(clients)), tuple((row.seq, entry_digest(row.entry)) for row in named)
            )
            changes = [erasure]
            op = Op(work.last(me.client).n + 1, os.urandom(16), (now,), encode_body(changes))
            work.load([op], [changes])
            refused = work.take(me, op, changes)
            assert refused is None, "the server's own op is taken"
        work.relabel()
        work.write()
        head = work.head
        assert head is not None
        counts = {
            "entries": len(found.entries),
            "records": len(found.records),
            "conflicts": len(found.conflicts),
        }
        tx.write_ledger([erasure_row(now, found.session, (head.epoch, head.seq), counts)])
