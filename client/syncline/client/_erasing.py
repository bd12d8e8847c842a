"""An erasure that arrives: what the named clients wrote goes from this file, too.

It goes in the transaction that moves the cursor onto the erasure, so the values are there with the
old cursor and gone with the new one. ``Database.scrub`` then frees the file's pages of them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

from syncline.sync import (
    Conflict,
    Entry,
    Erase,
    decode_conflict,
    encode_body,
    erase_conflict,
    erase_entry,
    erase_record,
)

from ._applying import Applied, apply_entries, repredict
from ._predict import Key
from ._rows import SessionState, canonical_records, notice, put_canonical, set_meta

SCRUB_DUE = "scrub_due"
"""Set until the file's free pages hold nothing of what was erased."""
_LEAD = encode_body([Erase(("c",), ())])[:3]
"""The first bytes of an erasure's body: what other entries may have in them, but it must."""


def apply_page(
    db: sqlite3.Connection,
    session: SessionState,
    client: str,
    seq: int,
    previous: bytes,
    data: Sequence[bytes],
    now: int,
) -> tuple[Applied, bool]:
    """``apply_entries``, with each erasure carried out before what comes after it is folded.

    What an erased client wrote later stays, which is why the order counts. Returns also whether
    anything was erased.
    """
    applied, erased = Applied(), False
    before: Sequence[bytes] = ()
    for run, erasure in _runs(data):
        for entry in map(Entry.decode, before):
            previous = entry.hash(previous)
        applied.add(apply_entries(db, session, client, seq, previous, run))
        before = run
        seq += len(run)
        if erasure is not None:
            applied.remote |= _erase(db, session, client, erasure, seq - 1)
            notice(db, now, "erased", session.id, seq=seq - 1, clients=list(erasure.clients))
            set_meta(db, SCRUB_DUE, 1)
            erased = True
    return applied, erased


def _runs(data: Sequence[bytes]) -> Iterator[tuple[Sequence[bytes], Erase | None]]:
    """The page cut behind each erasure."""
    if _LEAD not in b"".join(data):
        yield data, None
        return
    start = 0
    for end, item in enumerate(data, 1):
        erasure = _erasure_in(item)
        if erasure is not None:
            yield data[start:end], erasure
            start = end
    if start < len(data) or not data:
        yield data[start:], None


def _erasure_in(item: bytes) -> Erase | None:
    if _LEAD not in item:
        return None
    changes = [accepted.change for accepted in Entry.decode(item).read()]
    return next((change for change in changes if isinstance(change, Erase)), None)


def _erase(
    db: sqlite3.Connection, session: SessionState, client: str, erasure: Erase, seq: int
) -> set[Key]:
    """Carry out the erasure at ``seq``; the records that it changed.

    Rows that a bootstrap fetched later than that were erased where they came from. Numbers of own
    ops stay, so that nothing is counted twice; their receipts end with their salts.
    """
    gens = {session.gen} if session.boot is None else {session.gen, session.boot.gen}
    touched: set[Key] = set()
    for gen in gens:
        changed = _erase_records(db, gen, erasure, seq)
        touched |= changed if gen == session.gen else set()
    rewritten = []
    rows = db.execute(
        "SELECT seq, entry FROM syncline_entries WHERE session=? AND seq<?", (session.key, seq)
    )
    for at, data in rows:
        bare = erase_entry(Entry.decode(data), erasure.clients)
        if bare is not None:
            rewritten.append((bare.encode(), session.key, at))
    db.executemany(
        "UPDATE syncline_entries SET entry=?, salt=NULL WHERE session=? AND seq=?", rewritten
    )
    db.executemany(
        "UPDATE syncline_consumed SET salt=NULL WHERE session=? AND seq=?",
        [row[1:] for row in rewritten],
    )
    db.executemany(
        "DELETE FROM syncline_refused WHERE session=? AND client=?",
        [(session.key, one) for one in erasure.clients],
    )
    repredict(db, session, client, touched)
    return touched


def _erase_records(db: sqlite3.Connection, gen: int, erasure: Erase, seq: int) -> set[Key]:
    touched: set[Key] = set()
    vectors = {}
    for key, at, record in list(canonical_records(db, gen)):
        vectors[key] = record.vector
        bare = erase_record(key[0], record, erasure.clients) if at <= seq else None
        if bare is not None:
            put_canonical(db, gen, key, bare)
            touched.add(key)
    rows = db.execute(
        "SELECT id, conflict FROM syncline_conflicts WHERE gen=? AND closed=0", (gen,)
    ).fetchall()
    for id_, data in rows:
        conflict = decode_conflict(data)
        assert isinstance(conflict, Conflict)
        vector = vectors.get((conflict.collection, conflict.record_id), {})
        less = erase_conflict(conflict, erasure.clients, vector)
        if less is not None:
            db.execute(
                "UPDATE syncline_conflicts SET conflict=? WHERE gen=? AND id=?",
                (less.encode(), gen, id_),
            )
    return touched
