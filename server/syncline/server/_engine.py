"""The server as one state machine: no sockets, no threads, no sleeps, no clock.

``process(inputs, now)`` takes all that has happened, and gives back what to send. Per connection,
frames are dealt with strictly in their order; over all connections, the pushes and sign-ins of one
call are one transaction, and nothing that depends on it is said before it is committed. (A frame
that comes behind a push of its own connection waits for that commit; should there be pushes behind
it, they are the next transaction, in the same call.)

What a peer may cost is bounded: it is given nothing more while too many bytes have not left, and
while it takes nothing, its requests wait, and the shell stops reading from it, since ``Consumed``
does not come.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from syncline.sync import (
    PROTOCOL_VERSION,
    Busy,
    ErrorFrame,
    Forbidden,
    Frame,
    Hello,
    MalformedFrame,
    Mark,
    ProtocolError,
    Push,
    Refused,
    SyncError,
    ToServer,
    Unauthenticated,
    UnknownVersion,
    Welcome,
    decode_to_server,
    encode_frame,
    error_frame,
)

from ._auth import ANONYMOUS, Tokens
from ._coordinator import AHEAD_US_MAX, Committed, SignIn, SyncCoordinator
from ._hub import Hub
from ._peer import (
    CLOSE_BAD_DATA,
    CLOSE_INTERNAL,
    CLOSE_POLICY,
    CLOSE_PROTOCOL,
    CLOSE_TRY_LATER,
    Admitted,
    Close,
    Connected,
    Consumed,
    Disconnected,
    Drained,
    Input,
    Output,
    Peer,
    Received,
    Send,
    Tick,
)
from ._requests import Group, Requests
from ._settling import BUSY_RETRY_MS
from ._store import Store

HELLO_US_MAX = 5_000_000
STALL_US_MAX = 60_000_000
"""A peer that takes none of what it was sent for so long is let go."""
PEER_BUFFER_BYTES_MAX = 1 << 20
BOOTSTRAP_ENTRIES_MIN = 1000

_log = logging.getLogger("syncline.server")


class ServerEngine:
    """See the module. Used by one thread; the same calls give the same outputs, always."""

    def __init__(
        self,
        store: Store,
        tokens: Tokens | None = None,
        *,
        ahead_us_max: int = AHEAD_US_MAX,
        bootstrap_entries_min: int = BOOTSTRAP_ENTRIES_MIN,
        peer_buffer_bytes_max: int = PEER_BUFFER_BYTES_MAX,
    ) -> None:
        self._store = store
        self._tokens = tokens
        self._ahead_us_max = ahead_us_max
        self._coordinator = SyncCoordinator(store, ahead_us_max=ahead_us_max)
        self._hub = Hub(store, self._send, self._lost, peer_buffer_bytes_max)
        self._requests = Requests(store, self._hub, self._send, bootstrap_entries_min)
        self._now = 0
        self._out: list[Output] = []
        self._beside: list[Committed] = []
        self._consumed: dict[int, int] = {}
        self._peers: dict[int, Peer] = {}
        self._unread: dict[int, Peer] = {}
        self._gone: list[Peer] = []
        self._peers_by_client: dict[str, Peer] = {}
        # Deadlines by connection, the earliest first, since each kind has one length.
        self._hello_due: dict[int, int] = {}
        self._drain_due: dict[int, int] = {}

    def committed(self, committed: Committed) -> None:
        """Something was committed beside the engine, in its thread: the next ``process`` tells."""
        self._beside.append(committed)

    def process(self, inputs: Iterable[Input], now_us: int) -> list[Output]:
        """Deal with all that has happened. ``now_us``: microseconds since the Unix epoch."""
        self._now = now_us
        self._out, self._consumed = [], {}
        self._publish(self._beside)
        self._beside = []
        for item in inputs:
            self._take(item)
        self._expire()
        while True:
            group = Group()
            for peer in list(self._unread.values()):
                self._read(peer, group)
                if not peer.inbox:
                    self._unread.pop(peer.conn, None)
            if not group.waiting:
                break
            self._commit(group)
        for peer in self._gone:
            self._forget(peer)
        self._gone.clear()
        self._hub.catch_up()
        self._out += [Consumed(conn, taken) for conn, taken in self._consumed.items()]
        return self._out

    def next_deadline(self) -> int | None:
        """When to call ``process`` again at the latest; a time past means at once."""
        if self._hub.wants_turn():
            return self._now
        due = [next(iter(dues.values())) for dues in (self._hello_due, self._drain_due) if dues]
        return min(due, default=None)

    # What happened.

    def _take(self, item: Input) -> None:
        match item:
            case Connected(conn, address):
                self._peers[conn] = Peer(conn, address)
                self._hello_due[conn] = self._now + HELLO_US_MAX
            case Received(conn, data):
                if (peer := self._peers.get(conn)) is not None:
                    peer.inbox.append(data)
                    self._unread[conn] = peer
            case Drained(conn, bytes_sent):
                if (peer := self._peers.get(conn)) is not None:
                    peer.unsent_bytes = max(0, peer.unsent_bytes - bytes_sent)
                    self._drain_due.pop(conn, None)
                    if peer.unsent_bytes:
                        self._drain_due[conn] = self._now + STALL_US_MAX
            case Disconnected(conn):
                if (peer := self._peers.get(conn)) is not None:
                    peer.gone = True
                    self._gone.append(peer)
            case Tick():
                pass

    def _expire(self) -> None:
        for conn in _past(self._hello_due, self._now):
            self._fail(self._peers[conn], Busy("no hello came in time"), CLOSE_POLICY)
        for conn in _past(self._drain_due, self._now):
            self._close(self._peers[conn], CLOSE_TRY_LATER, "it takes nothing of what it is sent")

    # Reading frames.

    def _read(self, peer: Peer, group: Group) -> None:
        """Deal with the peer's frames up to one that has to wait for the group's commit."""
        while peer.inbox and peer.conn in self._peers:
            if not (self._hub.has_room(peer) or peer.gone):
                return
            item = peer.inbox.popleft()
            if isinstance(item, bytes | str):
                self._consumed[peer.conn] = self._consumed.get(peer.conn, 0) + len(item)
                try:
                    frame = decode_to_server(item)
                except MalformedFrame as error:
                    self._fail(peer, error, CLOSE_BAD_DATA)
                    return
                if frame is None and peer.principal is not None:
                    continue
            else:
                frame = item
            if peer.conn in group.waiting and not isinstance(frame, Push | Mark):
                assert frame is not None
                peer.inbox.appendleft(frame)
                return
            self._answer(peer, frame, group)

    def _answer(self, peer: Peer, frame: ToServer | None, group: Group) -> None:
        session = getattr(frame, "session", None)
        try:
            if peer.principal is None or isinstance(frame, Hello):
                self._hello(peer, frame, group)
            elif session is not None and not peer.principal.may_open(session):
                self._hub.unsubscribe(peer, session)
                self._tell(peer, Forbidden(f"no access to session {session}"), session)
            else:
                assert frame is not None
                self._requests.serve(peer, frame, group)
        except ProtocolError as error:
            self._fail(peer, error, CLOSE_PROTOCOL)
        except Refused as error:
            self._tell(peer, error, session)
        except Exception as error:
            # The store failed to read, or a bug: this request alone is answered with "busy".
            _log.exception("a request of %s failed", peer.address)
            reason = f"{type(error).__name__}: {error}"[:300]
            frame_ = ErrorFrame(
                session=session, code=3018, reason=reason, retry_after_ms=BUSY_RETRY_MS
            )
            self._send(peer, encode_frame(frame_))

    def _hello(self, peer: Peer, frame: ToServer | None, group: Group) -> None:
        if peer.principal is not None:
            raise MalformedFrame("a second hello on one connection")
        if not isinstance(frame, Hello):
            raise MalformedFrame("the first frame must be a hello")
        if frame.version != PROTOCOL_VERSION:
            raise UnknownVersion(
                f"this server speaks version {PROTOCOL_VERSION}, the client {frame.version}",
                server=PROTOCOL_VERSION,
                client=frame.version,
            )
        principal = ANONYMOUS if self._tokens is None else self._tokens.who(frame.token)
        if principal is None:
            reason = "no token was given" if frame.token is None else "the token is not known here"
            self._fail(peer, Unauthenticated(reason), CLOSE_POLICY)
            return
        peer.principal, peer.client = principal, frame.client
        group.sign_ins.append((peer, frame))
        group.waiting.add(peer.conn)

    # Committing.

    def _commit(self, group: Group) -> None:
        sign_ins = [
            SignIn(hello.client, hello.incarnation, (peer.principal or ANONYMOUS).name)
            for peer, hello in group.sign_ins
        ]
        pushes = [push for _, push in group.pushes]
        result = self._coordinator.commit_group(pushes, self._now, sign_ins)
        for (peer, hello), refused in zip(group.sign_ins, result.sign_ins, strict=True):
            if refused is None:
                self._welcome(peer, hello)
            else:
                again = isinstance(refused, Busy)
                self._fail(peer, refused, CLOSE_TRY_LATER if again else CLOSE_POLICY)
        for (peer, _), refusals in zip(group.pushes, result.answers, strict=True):
            for answer in refusals:
                self._say(peer, answer)
        self._publish(result.committed)
        if result.uncertain:
            for session in {push.session for push in pushes}:
                self._hub.look_again(session)
        for peer, mark in group.marks:
            self._requests.mark(peer, mark)

    def _publish(self, listed: Iterable[Committed]) -> None:
        for committed in listed:
            if committed.created:
                self._requests.announce(committed)
            self._hub.publish(committed)

    def _welcome(self, peer: Peer, hello: Hello) -> None:
        older = self._peers_by_client.get(peer.client)
        if older is not None and older is not peer:
            self._close(older, CLOSE_POLICY, "this client connected again")
        self._peers_by_client[peer.client] = peer
        self._hello_due.pop(peer.conn, None)
        identity = self._store.identity()
        if not peer.gone:
            self._out.append(Admitted(peer.conn))
        self._say(
            peer,
            Welcome(
                nonce=hello.nonce,
                store=identity.store_id,
                epoch=identity.epoch,
                clock=self._now,
                ahead_us_max=self._ahead_us_max,
            ),
        )

    def _lost(self, peer: Peer, session: str, error: Exception) -> None:
        """A peer cannot be caught up with a session."""
        if isinstance(error, Refused):
            self._hub.unsubscribe(peer, session)
            self._tell(peer, error, session)
        else:
            self._close(peer, CLOSE_INTERNAL, "the log could not be read")

    # Sending.

    def _say(self, peer: Peer, frame: Frame) -> None:
        self._send(peer, encode_frame(frame))

    def _send(self, peer: Peer, data: bytes) -> None:
        if peer.gone or peer.conn not in self._peers:
            return
        self._out.append(Send(peer.conn, data))
        if not peer.unsent_bytes:
            self._drain_due[peer.conn] = self._now + STALL_US_MAX
        peer.unsent_bytes += len(data)

    def _tell(self, peer: Peer, error: SyncError, session: str | None = None) -> None:
        self._say(peer, error_frame(error, session))

    def _fail(self, peer: Peer, error: SyncError, code: int) -> None:
        """Tell the peer why, and end the connection."""
        self._tell(peer, error)
        self._close(peer, code, error.reason)

    def _close(self, peer: Peer, code: int, reason: str) -> None:
        if not peer.gone:
            self._out.append(Close(peer.conn, code, reason))
        self._forget(peer)

    def _forget(self, peer: Peer) -> None:
        self._hub.forget(peer)
        self._peers.pop(peer.conn, None)
        self._unread.pop(peer.conn, None)
        self._requests.forget(peer)
        self._hello_due.pop(peer.conn, None)
        self._drain_due.pop(peer.conn, None)
        if self._peers_by_client.get(peer.client) is peer:
            del self._peers_by_client[peer.client]


def _past(due: dict[int, int], now: int) -> list[int]:
    """The connections whose time is up; the earliest deadline comes first."""
    past = []
    for conn, deadline in due.items():
        if deadline > now:
            break
        past.append(conn)
    return past
