"""Answers that only read: listings, how a session stands, points in common, pages.

Each is a function of the store and the request; who may ask is settled before.
"""

from __future__ import annotations

from syncline.sync import (
    NO_HASH,
    PAGE_BYTES,
    PAGE_ITEMS_MAX,
    BelowFloor,
    Common,
    Compare,
    History,
    HistoryPage,
    Open,
    Opened,
    SessionItem,
    Sessions,
    Snapshot,
    SnapshotPage,
    UnknownRecord,
    genesis,
)

from ._auth import Principal
from ._store import Head, Store


def head_of(store: Store, session: str) -> Head:
    """The head of a session; of one that is not there yet, the head it will be created with."""
    head = store.head(session)
    if head is not None:
        return head
    identity = store.identity()
    hash_ = genesis(identity.store_id, identity.epoch, session)
    return Head(identity.epoch, 0, hash_, hash_, 0)


def sessions_page(store: Store, principal: Principal, after: str) -> Sessions:
    """The sessions that exist and that the principal may open, by id, after ``after``."""
    items: list[SessionItem] = []
    if principal.opens_all:
        rows = store.sessions(after, PAGE_ITEMS_MAX + 1)
        items = [SessionItem(row.id, row.label, row.epoch, row.seq) for row in rows]
    else:
        for session in sorted(principal.sessions):
            if session > after and (head := store.head(session)) is not None:
                items.append(SessionItem(session, head.label, head.epoch, head.seq))
            if len(items) > PAGE_ITEMS_MAX:
                break
    more = len(items) > PAGE_ITEMS_MAX
    return Sessions(items=tuple(items[:PAGE_ITEMS_MAX]), page=True, more=more)


def opened(store: Store, client: str, frame: Open, bootstrap_entries_min: int) -> Opened:
    """How the client and the log stand to each other."""
    head = head_of(store, frame.session)
    last = store.last_op(frame.session, client)
    fresh = frame.seq == 0 and frame.hash is None
    if head.seq and frame.snapshot:
        stand = "bootstrap"
    elif fresh:
        stand = "bootstrap" if head.seq > bootstrap_entries_min or head.floor else "catch_up"
    elif frame.seq < head.floor:
        stand = "bootstrap"
    else:
        here = _hash_at(store, frame.session, frame.seq, head)
        if here is None and frame.seq == head.floor:
            stand = "bootstrap"
        else:
            stand = "catch_up" if here is not None and here == frame.hash else "diverged"
    return Opened(
        session=frame.session,
        stand=stand,  # type: ignore[arg-type]
        genesis=head.genesis,
        epoch=head.epoch,
        head=head.seq,
        hash=head.hash,
        floor=head.floor,
        last=last.n if last is not None else 0,
        running=last.running if last is not None else NO_HASH,
    )


def _hash_at(store: Store, session: str, seq: int, head: Head) -> bytes | None:
    if seq == head.seq:
        return head.hash
    return store.hash_at(session, seq) if seq < head.seq else None


def common(store: Store, frame: Compare) -> Common:
    """The largest of the points that the log shares; 0 when there is none."""
    head = head_of(store, frame.session)
    for seq, hash_ in sorted(frame.points, reverse=True):
        if _hash_at(store, frame.session, seq, head) == hash_:
            return Common(session=frame.session, seq=seq)
    return Common(session=frame.session, seq=0)


def snapshot_page(store: Store, client: str, frame: Snapshot) -> SnapshotPage:
    """The next page of a bootstrap. Raises UnknownRecord (3002) for a session not there."""
    if store.head(frame.session) is None:
        raise UnknownRecord(f"there is no session {frame.session} here")
    part = store.snapshot(
        frame.session, frame.after, client, frame.pending_from, PAGE_BYTES, PAGE_ITEMS_MAX
    )
    return SnapshotPage(
        session=frame.session,
        epoch=part.head.epoch,
        seq=part.head.seq,
        hash=part.head.hash,
        rows=tuple((row.collection, row.id, row.seq, row.state) for row in part.rows),
        conflicts=tuple(conflict.encode() for conflict in part.conflicts),
        entries=tuple((row.hash, row.entry) for row in part.entries),
        after=part.after,
        vector=part.vector,
    )


def history_page(store: Store, frame: History) -> HistoryPage:
    """Entries from ``seq`` through ``through``, one page of them.

    Raises BelowFloor (3009) and UnknownRecord (3002) outside of what the log holds.
    """
    head = head_of(store, frame.session)
    if frame.seq <= head.floor:
        raise BelowFloor(f"the log begins after seq {head.floor}", floor=head.floor)
    previous = _hash_at(store, frame.session, frame.seq - 1, head)
    if previous is None:
        raise UnknownRecord(f"the log ends at seq {head.seq}", head=head.seq)
    items = min(PAGE_ITEMS_MAX, max(0, frame.through - frame.seq + 1))
    rows = store.entries(frame.session, frame.seq - 1, PAGE_BYTES, items) if items else []
    return HistoryPage(
        session=frame.session,
        seq=frame.seq,
        previous=previous,
        entries=tuple(row.entry for row in rows),
    )
