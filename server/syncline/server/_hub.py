"""The hub: entries in order to everybody who has the session open, encoded once for all.

A subscription is **live** when all up to the log's head was sent to it, else its peer is **behind**
with it. Live ones get what is committed at once, as long as their peer takes what it is sent; one
that does not falls behind and is caught up from the store by its cursor, a page at a time, so that
nothing is buffered without bound and nobody waits for anybody.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from syncline.sync import (
    PAGE_BYTES,
    PAGE_ITEMS_MAX,
    BelowFloor,
    Entries,
    encode_frame,
)

from ._coordinator import Committed
from ._peer import Peer, Subscription
from ._store import LogRow, Store

_log = logging.getLogger("syncline.server")


class _Page(NamedTuple):
    """Encoded entries, the last of them, and whether the log goes on behind it."""

    data: bytes
    last: LogRow
    more: bool


class Hub:
    """Subscriptions by session, and who is behind.

    ``send`` gives bytes to a peer and counts them; ``lost`` is told of a peer that cannot be
    caught up. A peer with ``peer_buffer_bytes_max`` bytes
    that have not left yet gets no more entries until they do.
    """

    def __init__(
        self,
        store: Store,
        send: Callable[[Peer, bytes], None],
        lost: Callable[[Peer, str, Exception], None],
        peer_buffer_bytes_max: int,
    ) -> None:
        self._store = store
        self._send = send
        self._lost = lost
        self._peer_buffer_bytes_max = peer_buffer_bytes_max
        self._subscribers: dict[str, dict[int, Peer]] = {}
        self._behind: dict[int, Peer] = {}

    def has_room(self, peer: Peer) -> bool:
        return peer.unsent_bytes < self._peer_buffer_bytes_max

    def subscribe(self, peer: Peer, subscription: Subscription, head: int) -> None:
        """From the subscription's cursor on; replaces one that the peer has of this session."""
        session = subscription.session
        self.unsubscribe(peer, session)
        peer.subscriptions[session] = subscription
        self._subscribers.setdefault(session, {})[peer.conn] = peer
        if subscription.seq < head:
            self._fall_behind(peer, subscription)

    def unsubscribe(self, peer: Peer, session: str) -> None:
        peer.subscriptions.pop(session, None)
        peer.behind.pop(session, None)
        if not peer.behind:
            self._behind.pop(peer.conn, None)
        peers = self._subscribers.get(session)
        if peers is not None:
            peers.pop(peer.conn, None)
            if not peers:
                del self._subscribers[session]

    def forget(self, peer: Peer) -> None:
        for session in list(peer.subscriptions):
            self.unsubscribe(peer, session)

    def publish(self, committed: Committed) -> None:
        """Send what was committed to all who are live."""
        peers = self._subscribers.get(committed.session)
        if not peers or not committed.rows:
            return
        frames = list(_frames(committed))
        for peer in peers.values():
            subscription = peer.subscriptions[committed.session]
            if committed.session in peer.behind:
                continue
            for seq, hash_, count, data in frames:
                if subscription.seq != seq or not self.has_room(peer):
                    self._fall_behind(peer, subscription)
                    break
                self._send(peer, data)
                subscription.seq, subscription.hash = seq + count, hash_

    def look_again(self, session: str) -> None:
        """The log may be further than was told: catch up from the store."""
        for peer in self._subscribers.get(session, {}).values():
            self._fall_behind(peer, peer.subscriptions[session])

    def relay(self, session: str, data: bytes, sender: Peer) -> None:
        """Send something ephemeral to the other live subscribers."""
        for peer in self._subscribers.get(session, {}).values():
            if peer is not sender and session not in peer.behind and self.has_room(peer):
                self._send(peer, data)

    def catch_up(self) -> None:
        """One page from the store for each peer that is behind and has room.

        Peers at the same cursor share the page.
        """
        pages: dict[tuple[str, int], _Page | None] = {}
        for peer in [peer for peer in self._behind.values() if self.has_room(peer)]:
            session, subscription = next(iter(peer.behind.items()))
            key = (session, subscription.seq)
            try:
                page = pages[key] if key in pages else self._page(subscription)
            except Exception as error:
                _log.warning("session %s: no page after %d: %s", *key, error)
                self._lost(peer, session, error)
                continue
            pages[key] = page
            del peer.behind[session]
            if page is not None:
                self._send(peer, page.data)
                subscription.seq, subscription.hash = page.last.seq, page.last.hash
                if page.more:
                    # At the end of the line: its other sessions get their turn.
                    peer.behind[session] = subscription
            if not peer.behind:
                del self._behind[peer.conn]

    def wants_turn(self) -> bool:
        """Whether there is somebody to catch up who has room."""
        return any(self.has_room(peer) for peer in self._behind.values())

    def _page(self, subscription: Subscription) -> _Page | None:
        session = subscription.session
        rows = self._store.entries(session, subscription.seq, PAGE_BYTES, PAGE_ITEMS_MAX)
        if not rows:
            return None
        if rows[0].seq != subscription.seq + 1:
            raise BelowFloor(f"the log of {session} begins at {rows[0].seq}")
        data = _encoded(session, subscription.seq, subscription.hash, rows)
        head = self._store.head(session)
        return _Page(data, rows[-1], head is not None and rows[-1].seq < head.seq)

    def _fall_behind(self, peer: Peer, subscription: Subscription) -> None:
        peer.behind[subscription.session] = subscription
        self._behind[peer.conn] = peer


def _frames(committed: Committed) -> Iterator[tuple[int, bytes, int, bytes]]:
    """The committed rows in frames: seq before, hash after, count, bytes."""
    seq, previous, rows = committed.previous_seq, committed.previous_hash, committed.rows
    start = 0
    while start < len(rows):
        end, size = start, 0
        while end < len(rows) and end - start < PAGE_ITEMS_MAX:
            size += len(rows[end].entry)
            if size > PAGE_BYTES and end > start:
                break
            end += 1
        page = rows[start:end]
        yield seq, page[-1].hash, len(page), _encoded(committed.session, seq, previous, page)
        seq, previous, start = page[-1].seq, page[-1].hash, end


def _encoded(session: str, after: int, previous: bytes, rows: Sequence[LogRow]) -> bytes:
    assert rows[0].seq == after + 1 and rows[-1].seq == after + len(rows), "a hole in the log"
    entries = tuple(row.entry for row in rows)
    return encode_frame(Entries(session=session, seq=after + 1, previous=previous, entries=entries))
