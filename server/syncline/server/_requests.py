"""What a signed-in peer may ask: listings, opening sessions, pushes, pages, marks, signals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from syncline.sync import (
    Compare,
    Frame,
    Hello,
    History,
    ListSessions,
    Malformed,
    Mark,
    Marked,
    Open,
    Push,
    SessionItem,
    Sessions,
    Signal,
    Snapshot,
    TooManyRequests,
    ToServer,
    decode_op,
    encode_frame,
)

from . import _answers as answers
from ._audit import Author
from ._coordinator import Committed, PushedOps
from ._hub import Hub
from ._peer import Peer, Subscription
from ._store import Store

OPEN_SESSIONS_MAX = 2000
"""On one connection; a ``marked`` frame has to name them all."""


@dataclass(slots=True)
class Group:
    """What one transaction is to commit, and what is said right after it."""

    pushes: list[tuple[Peer, PushedOps]] = field(default_factory=list)
    sign_ins: list[tuple[Peer, Hello]] = field(default_factory=list)
    marks: list[tuple[Peer, Mark]] = field(default_factory=list)
    waiting: set[int] = field(default_factory=set)
    """Connections that have something in this group."""


class Requests:
    """Serves them. ``send`` gives bytes to a peer."""

    def __init__(
        self,
        store: Store,
        hub: Hub,
        send: Callable[[Peer, bytes], None],
        bootstrap_entries_min: int,
    ) -> None:
        self._store = store
        self._hub = hub
        self._send = send
        self._bootstrap_entries_min = bootstrap_entries_min
        self._listeners: dict[int, Peer] = {}

    def serve(self, peer: Peer, frame: ToServer, group: Group) -> None:
        """Answer a request, or put it into the group. Raises what is to be answered instead."""
        match frame:
            case Push():
                self._push(peer, frame, group)
            case Mark():
                if peer.conn in group.waiting:
                    group.marks.append((peer, frame))
                else:
                    self.mark(peer, frame)
            case ListSessions():
                assert peer.principal is not None
                self._listeners[peer.conn] = peer
                self._say(peer, answers.sessions_page(self._store, peer.principal, frame.after))
            case Open():
                self._open(peer, frame)
            case Compare():
                self._say(peer, answers.common(self._store, frame))
            case Snapshot():
                self._say(peer, answers.snapshot_page(self._store, peer.client, frame))
            case History():
                self._say(peer, answers.history_page(self._store, frame))
            case Signal():
                if frame.session in peer.subscriptions:
                    frame = frame.model_copy(update={"client": peer.client})
                    self._hub.relay(frame.session, encode_frame(frame), peer)

    def mark(self, peer: Peer, frame: Mark) -> None:
        heads = [(session, answers.head_of(self._store, session)) for session in peer.subscriptions]
        marked = tuple((session, head.epoch, head.seq) for session, head in heads)
        self._say(peer, Marked(id=frame.id, heads=marked))

    def announce(self, committed: Committed) -> None:
        """Tell those who have listed the sessions of a new one that they may open."""
        head = committed.head
        item = SessionItem(committed.session, head.label, head.epoch, head.seq)
        data = encode_frame(Sessions(items=(item,)))
        for peer in self._listeners.values():
            if peer.principal is not None and peer.principal.may_open(committed.session):
                self._send(peer, data)

    def forget(self, peer: Peer) -> None:
        self._listeners.pop(peer.conn, None)

    def _open(self, peer: Peer, frame: Open) -> None:
        session = frame.session
        known = session in peer.subscriptions or session in peer.unsubscribed
        if not known and len(peer.subscriptions) + len(peer.unsubscribed) >= OPEN_SESSIONS_MAX:
            raise TooManyRequests(f"{OPEN_SESSIONS_MAX} sessions are open on this connection")
        self._hub.unsubscribe(peer, session)
        opened = answers.opened(self._store, peer.client, frame, self._bootstrap_entries_min)
        self._say(peer, opened)
        if opened.stand == "catch_up":
            peer.unsubscribed.discard(session)
            cursor = Subscription(session, frame.seq, frame.hash or opened.genesis)
            self._hub.subscribe(peer, cursor, opened.head)
        else:
            peer.unsubscribed.add(session)

    def _push(self, peer: Peer, frame: Push, group: Group) -> None:
        assert peer.principal is not None
        subscription = peer.subscriptions.get(frame.session)
        if subscription is None:
            if frame.session not in peer.unsubscribed:
                raise Malformed(f"session {frame.session} is not open on this connection")
            return
        ops = [decode_op(op) for op in frame.ops]
        author = Author(peer.client, peer.principal.name)
        push = PushedOps(frame.session, author, ops, subscription.lane)
        group.pushes.append((peer, push))
        group.waiting.add(peer.conn)

    def _say(self, peer: Peer, frame: Frame) -> None:
        self._send(peer, encode_frame(frame))
