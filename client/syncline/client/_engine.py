"""The client's half of ``syncline.v1``: a state machine without sockets, threads, sleeps or clocks.

Bytes and time go in (``receive``, ``tick``, ``local_change``), bytes come out (``take_output``),
and the replica's core is told what the log says. ``now`` is microseconds on a clock that only goes
forward; the time of day is the core's. One engine lives as long as one connection; all
that must outlive it is in the replica's file. What ends a connection is raised: ``Reconnect`` says
whether at once, and anything of ``SyncError`` is for a person to see.

    opening ──opened: catch up──▶ live ◀──────────────┐
       │                                              │
       ├──opened: bootstrap──▶ booting ──last page────┤ (opened again at the snapshot's head)
       └──opened: diverged──▶ comparing ──common──▶ booting
    any ──error 3008──▶ paused

A watchdog owns every waiting state: whoever waits for the server without progress for
``PROGRESS_US_MAX`` reconnects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from syncline.sync import (
    PAGE_ITEMS_MAX,
    BadPeer,
    Common,
    Compare,
    Conflict,
    Diverged,
    Entries,
    Entry,
    ErrorFrame,
    Frame,
    Hello,
    HistoryPage,
    ListSessions,
    MalformedFrame,
    Mark,
    Marked,
    Open,
    Opened,
    OpRefused,
    Push,
    ReplicaCloned,
    Sessions,
    Signal,
    Snapshot,
    SnapshotPage,
    SyncError,
    UnknownVersion,
    Welcome,
    decode_to_client,
    encode_frame,
    is_final,
    refusal,
)

from ._core import Core
from ._track import Counts, Stage, Track

PROGRESS_US_MAX = 15_000_000
"""Waiting for the server this long without progress means reconnect."""
LEASE_RENEWAL_US = 3_000_000
IN_FLIGHT_OPS_MAX = 4096
IN_FLIGHT_BYTES_MAX = 2 << 20
PUSH_OPS_MAX = 512
PUSH_BYTES_MAX = 256 << 10
POINTS = 24
BUSY_DELAY_US_MIN = 500_000
BUSY_DELAY_US_MAX = 30_000_000


class Reconnect(Exception):
    """This connection has served its time; everything pending goes over the next one."""

    def __init__(self, reason: str, *, at_once: bool = False) -> None:
        super().__init__(reason)
        self.at_once = at_once


class ClientEngine:
    """Speaks for one replica over one connection."""

    def __init__(
        self,
        core: Core,
        *,
        token: str | None = None,
        only: Iterable[str] | None = None,
        random_bytes: Callable[[int], bytes],
        on_signal: Callable[[str, str, bytes, str], None] | None = None,
    ) -> None:
        self._core = core
        self._token = token
        self._only = None if only is None else frozenset(only)
        self._nonce = random_bytes(16)
        self._on_signal = on_signal
        self._out: list[bytes] = []
        self._hello_clock = 0
        self._progress_at = 0
        self._renewed_at = 0
        self.welcome: Welcome | None = None
        self.tracks: dict[str, Track] = {}
        self.listed = False
        self._listings = 0
        self._marks: dict[int, Marked | None] = {}
        self._next_mark = 1
        self.counts = Counts()

    # What goes in.

    def start(self, now: int) -> None:
        """The socket is up: say hello."""
        client, incarnation = self._core.begin_connection()
        self._progress_at = self._renewed_at = now
        self._hello_clock = self._core.clock()
        self._send(
            Hello(
                client=client,
                incarnation=incarnation,
                nonce=self._nonce,
                token=self._token,
                clock=max(0, self._hello_clock),
            )
        )

    def receive(self, data: bytes | str, now: int) -> None:
        """A message of the server. Raises Reconnect, or a SyncError that ends the syncing."""
        try:
            frame = decode_to_client(data)
        except MalformedFrame as error:
            raise BadPeer(f"the server sent what is not syncline.v1: {error.reason}") from error
        if frame is None:
            return
        try:
            self._dispatch(frame, now)
            self._renew_if_due()
        except ReplicaCloned as error:
            self._core.become_new_client(error.reason)
            raise Reconnect(str(error), at_once=True) from error
        except MalformedFrame as error:
            self._set_aside(frame, error, now)

    def _set_aside(self, frame: Frame, error: MalformedFrame, now: int) -> None:
        """A session that cannot be gone on with keeps no other waiting; it is opened anew later."""
        reason = f"the server sent what cannot be applied: {error.reason}"
        track = self.tracks.get(getattr(frame, "session", None) or "")
        if track is None:
            raise Reconnect(reason) from error
        self._pause(track, error.code, reason)
        track.broken = reason
        self._hold_back(track, None, now)

    def _open_again(self, track: Track) -> None:
        self._open(track.id)
        self.tracks[track.id].delay = track.delay

    @property
    def broken(self) -> str | None:
        """Why a session cannot be gone on with, if there is one."""
        stories = [f"session {t.id}: {t.broken}" for t in self.tracks.values() if t.broken]
        return stories[0] if stories else None

    def _renew_if_due(self) -> None:
        """After a restore, when all that the server forgot is there again, take a new id."""
        if self.settled_down and self._core.renew_due() and self._has_caught_up():
            reason = "the server was restored: copies of this replica may use its numbers anew"
            self._core.become_new_client(reason)
            raise Reconnect(reason, at_once=True)

    def _has_caught_up(self) -> bool:
        """Whether what stood when the sessions were opened is here: own entries may be in it."""
        return all(
            track.opened is None or self._core.shown_seq(track.id) >= track.opened.head
            for track in self.tracks.values()
            if track.stage is not Stage.PAUSED
        )

    def local_change(self, now: int, session: str | None = None) -> None:
        """Something was written here: to this session, or (None) to any, by another process."""
        if self.welcome is None:
            return
        if session is not None and session in self.tracks:
            self._pump(self.tracks[session], now)
            return
        for id_ in self._core.session_ids():
            if id_ not in self.tracks and self._wants(id_):
                self._open(id_)
        for track in list(self.tracks.values()):
            self._pump(track, now)

    def tick(self, now: int) -> None:
        """A timer ran out. Raises Reconnect when the server has been silent for too long."""
        if now - self._renewed_at >= LEASE_RENEWAL_US:
            self._core.renew_lease()
            self._renewed_at = now
        if self._waits() and now - self._progress_at >= PROGRESS_US_MAX:
            raise Reconnect(f"no progress for {PROGRESS_US_MAX // 1_000_000} s")
        for track in list(self.tracks.values()):
            if track.not_before and track.not_before <= now:
                track.not_before = 0
                self._open_again(track) if track.broken else self._pump(track, now)

    def deadline(self) -> int:
        """When ``tick`` is due (microseconds on the clock that ``now`` is read from)."""
        times = [self._renewed_at + LEASE_RENEWAL_US]
        times += [track.not_before for track in self.tracks.values() if track.not_before]
        if self._waits():
            times.append(self._progress_at + PROGRESS_US_MAX)
        return min(times)

    def take_output(self) -> list[bytes]:
        """The frames to send, in order."""
        out, self._out = self._out, []
        return out

    # Being synced.

    @property
    def settled_down(self) -> bool:
        """Whether the listing is here and every session is live or paused."""
        return (
            self.welcome is not None
            and self.listed
            and all(t.stage in (Stage.LIVE, Stage.PAUSED) for t in self.tracks.values())
        )

    def list_again(self) -> None:
        """Ask anew which sessions there are; ``listed`` is true once the answer is here."""
        if self._only is None:
            self.listed = False
            self._listings += 1
            self._send(ListSessions())

    def mark(self) -> int:
        """Ask where the heads stand now; see ``reached``."""
        id_, self._next_mark = self._next_mark, self._next_mark + 1
        self._marks[id_] = None
        self._send(Mark(id=id_))
        return id_

    def reached(self, mark: int) -> bool:
        """Whether all that stood at the mark is here. Then the mark is forgotten."""
        marked = self._marks[mark]
        if marked is None:
            return False
        for session, _, seq in marked.heads:
            track = self.tracks.get(session)
            if track is not None and track.stage is not Stage.PAUSED:
                if track.stage is not Stage.LIVE or self._core.shown_seq(session) < seq:
                    return False
        del self._marks[mark]
        return True

    def signal(self, session: str, kind: str, payload: bytes) -> None:
        """Send something ephemeral to whoever has the session open now."""
        self._send(Signal(session=session, kind=kind, payload=payload))

    def _waits(self) -> bool:
        return (
            self.welcome is None
            or self._listings > 0
            or any(
                track.stage in (Stage.OPENING, Stage.COMPARING, Stage.BOOTING)
                or (track.stage is Stage.LIVE and bool(track.in_flight) and not track.not_before)
                for track in self.tracks.values()
            )
            or any(marked is None for marked in self._marks.values())
        )

    # What comes from the server.

    def _dispatch(self, frame: Frame, now: int) -> None:
        if isinstance(frame, Welcome):
            self._welcomed(frame, now)
            return
        if isinstance(frame, ErrorFrame):
            self._error(frame, now)
            return
        if self.welcome is None:
            return  # Nothing is applied before the handshake is done.
        match frame:
            case Sessions():
                self._sessions(frame, now)
            case Opened():
                self._opened(frame, now)
            case Entries():
                self._entries(frame, now)
            case Common():
                self._common(frame, now)
            case SnapshotPage():
                self._snapshot_page(frame, now)
            case OpRefused():
                self._refused(frame, now)
            case Marked():
                if frame.id in self._marks:
                    self._marks[frame.id] = frame
                    self._progress_at = now
            case Signal():
                if self._on_signal is not None:
                    self._on_signal(frame.session, frame.kind, frame.payload, frame.client)
            case HistoryPage():
                pass
            case _:
                raise AssertionError(f"no handler for {type(frame).__name__}")

    def _welcomed(self, frame: Welcome, now: int) -> None:
        if self.welcome is not None or frame.nonce != self._nonce:
            return  # A late duplicate would rewind a healthy client.
        self.welcome = frame
        self._progress_at = now
        self._core.meet(frame, self._hello_clock)
        if self._only is None:
            self.list_again()
        else:
            self.listed = True
            for id_ in self._only:
                self._core.ensure_session(id_)
        for id_ in self._core.session_ids():
            if self._wants(id_):
                self._open(id_)

    def _wants(self, id_: str) -> bool:
        return self._only is None or id_ in self._only

    def _sessions(self, frame: Sessions, now: int) -> None:
        self._progress_at = now
        for item in frame.items:
            if self._wants(item.session) and item.session not in self.tracks:
                self._core.ensure_session(item.session)
                self._open(item.session)
        if frame.page and frame.more and frame.items:
            self._send(ListSessions(after=frame.items[-1].session))
        elif frame.page:
            # Another listing may have been asked for meanwhile: that one counts.
            self._listings = max(0, self._listings - 1)
            self.listed = self._listings == 0

    def _open(self, id_: str) -> None:
        track = self.tracks[id_] = Track(id_)
        epoch, seq, hash_, pending_from, snapshot = self._core.open_point(id_)
        self._send(
            Open(
                session=id_,
                epoch=epoch,
                seq=seq,
                hash=hash_,
                pending_from=pending_from,
                snapshot=snapshot,
            )
        )
        track.stage = Stage.OPENING

    def _opened(self, frame: Opened, now: int) -> None:
        track = self.tracks.get(frame.session)
        if track is None or track.stage is not Stage.OPENING:
            return
        self._progress_at = now
        track.opened = frame
        self._core.check_lineage(track.id, frame.last, frame.running)
        diverged = frame.stand == "diverged"
        if self._core.boot_is_void(track.id, diverged, frame.epoch, frame.head):
            # The server changed under the bootstrap: back to what shows, and compare that.
            self._core.abandon_bootstrap(track.id)
            self._open(track.id)
        elif (common := self._core.compare_anew(track.id)) is not None:
            track.low, track.high = 0, common + 1 if frame.head else 0
            self._compare(track, now)
        elif diverged:
            track.low, track.high = 0, self._core.compare_from(track.id)
            self._compare(track, now)
        elif frame.stand == "bootstrap":
            self._requeue(track, frame.last)
            self._boot(track, afresh=True)
        else:
            self._requeue(track, frame.last)
            self._go_on(track, now)

    def _requeue(self, track: Track, last: int) -> None:
        self.counts.requeued += self._core.requeue(track.id, last)

    def _go_on(self, track: Track, now: int) -> None:
        """The cursor is good: live from here, unless a bootstrap still wants pages."""
        if self._core.boot_after(track.id) is not None:
            self._boot(track, afresh=False)
            return
        track.stage = Stage.LIVE
        self._core.session_opened(track.id)
        track.sent_through = self._core.lowest_pending(track.id) - 1
        track.in_flight.clear()
        self._pump(track, now)

    def _compare(self, track: Track, now: int) -> None:
        points = self._core.compare_points(track.id, track.low, track.high, POINTS)
        if not points:
            self._go_back(track, now)
            return
        track.stage = Stage.COMPARING
        track.asked = [seq for seq, _ in points]
        self._send(Compare(session=track.id, points=tuple(points)))

    def _common(self, frame: Common, now: int) -> None:
        track = self.tracks.get(frame.session)
        if track is None or track.stage is not Stage.COMPARING:
            return
        if frame.seq and frame.seq not in track.asked:
            raise MalformedFrame(f"{frame.seq} is none of the points that were asked about")
        self._progress_at = now
        above = [seq for seq in track.asked if seq > frame.seq]
        track.low = max(track.low, frame.seq)
        track.high = min([track.high, *above])
        self._compare(track, now)

    def _go_back(self, track: Track, now: int) -> None:
        opened = track.opened
        assert opened is not None
        count = self._core.go_back(
            track.id,
            common=track.low,
            last=opened.last,
            empty=(opened.epoch, opened.hash) if opened.head == 0 else None,
        )
        self.counts.healed += 1
        self.counts.requeued += count
        if opened.head == 0:
            self._open(track.id)
        else:
            self._boot(track, afresh=False)

    def _boot(self, track: Track, *, afresh: bool) -> None:
        track.stage = Stage.BOOTING
        self._core.begin_bootstrap(track.id, afresh=afresh)
        self._ask_page(track, self._core.boot_after(track.id) or b"")

    def _ask_page(self, track: Track, after: bytes) -> None:
        pending_from = self._core.snapshot_from(track.id)
        self._send(Snapshot(session=track.id, after=after, pending_from=pending_from))

    def _snapshot_page(self, frame: SnapshotPage, now: int) -> None:
        track = self.tracks.get(frame.session)
        if track is None or track.stage is not Stage.BOOTING:
            return
        self._progress_at = now
        if frame.after is not None:
            self._ask_page(track, frame.after)  # The next one travels while this one is stored.
        if self._core.apply_snapshot_page(track.id, frame):
            self.counts.bootstrapped += 1
        if frame.after is None:
            self._open(track.id)

    def _entries(self, frame: Entries, now: int) -> None:
        track = self.tracks.get(frame.session)
        if track is None or track.stage not in (Stage.LIVE, Stage.BOOTING):
            return
        self._progress_at = now
        if track.opened is not None and frame.seq == 1 and frame.previous != track.opened.genesis:
            raise MalformedFrame(f"the log of {track.id} does not begin with its genesis")
        if frame.seq > self._core.cursor(track.id) + 1:
            self._open(track.id)
            return
        try:
            applied = self._core.apply_entries(track.id, frame.seq, frame.previous, frame.entries)
        except Diverged:
            self._open(track.id)
            return
        for n, _ in applied.settled:
            track.in_flight.pop(n, None)
        self.counts.received += applied.entries - len(applied.settled)
        self.counts.conflicts += sum(isinstance(c, Conflict) for c in applied.conflicts)
        for repeat in list(track.repeats.values()):
            self._settle_repeat(track, repeat)
        self._pump(track, now)

    # Pushing.

    def _pump(self, track: Track, now: int) -> None:
        """Send what waits, as far as the window allows."""
        if track.stage is not Stage.LIVE or track.not_before > now:
            return
        while len(track.in_flight) < IN_FLIGHT_OPS_MAX:
            room = IN_FLIGHT_BYTES_MAX - sum(track.in_flight.values())
            if room <= 0:
                return
            ops = self._core.take_ops(
                track.id,
                track.sent_through,
                ops_max=min(PUSH_OPS_MAX, PAGE_ITEMS_MAX, IN_FLIGHT_OPS_MAX - len(track.in_flight)),
                bytes_max=min(room, PUSH_BYTES_MAX),
            )
            if not ops:
                return
            if not track.in_flight:
                self._progress_at = now
            for n, data in ops:
                track.in_flight[n] = len(data)
                track.sent_through = n
            self.counts.sent += len(ops)
            self._send(Push(session=track.id, ops=tuple(data for _, data in ops)))

    def _send_again_from(self, track: Track, n: int) -> None:
        self.counts.sent -= sum(1 for number in track.in_flight if number >= n)
        track.in_flight = {m: size for m, size in track.in_flight.items() if m < n}
        track.sent_through = n - 1

    def _refused(self, frame: OpRefused, now: int) -> None:
        track = self.tracks.get(frame.session)
        if track is None or track.stage is not Stage.LIVE:
            return
        self._progress_at = now
        if frame.final and is_final(frame.code):
            track.delay = 0
            if frame.code == 0 and frame.entry is not None:
                self._settle_repeat(track, frame)
            else:
                self._core.refused(track.id, frame.n, frame.code, frame.reason, frame.detail)
                self.counts.refused += frame.code != 0
                track.in_flight.pop(frame.n, None)
            self._pump(track, now)
            return
        self._not_final(track, frame, now)

    def _settle_repeat(self, track: Track, frame: OpRefused) -> None:
        """The log holds this op already; it is settled once the cursor has passed its entry."""
        assert frame.entry is not None
        entry = Entry.decode(frame.entry)
        if entry.seq > self._core.cursor(track.id):
            track.repeats[frame.n] = frame
            return
        self._core.repeated(track.id, frame.n, entry, frame.hash or b"")
        track.repeats.pop(frame.n, None)
        track.in_flight.pop(frame.n, None)

    def _not_final(self, track: Track, frame: OpRefused, now: int) -> None:
        match frame.code:
            case 3003 | 3012:
                count = self._core.stamp_again(track.id, frame.n, frame.code, frame.detail)
                self._send_again_from(track, frame.n)
                if not count:
                    self._hold_back(track, None, now)  # The same again at once helps nobody.
            case 3005:
                expected = frame.detail.get("expected")
                if type(expected) is not int or expected < 1:
                    raise MalformedFrame("a gap is named without the number expected")
                self._requeue(track, expected - 1)
                self._send_again_from(track, expected)
            case 3006 | 3016:
                raise ReplicaCloned(frame.reason)
            case 3008:
                self._pause(track, frame.code, frame.reason)
            case 3020:
                raise refusal(frame.code, frame.reason, frame.detail)
            case _:
                self._send_again_from(track, frame.n)
                self._hold_back(track, frame.detail.get("retry_after_ms"), now)
        self._pump(track, now)

    def _hold_back(self, track: Track, retry_after_ms: object, now: int) -> None:
        track.delay = min(max(track.delay * 2, BUSY_DELAY_US_MIN), BUSY_DELAY_US_MAX)
        wait = retry_after_ms * 1000 if type(retry_after_ms) is int else track.delay
        track.not_before = now + min(max(wait, track.delay), BUSY_DELAY_US_MAX)

    def _pause(self, track: Track, code: int, reason: str) -> None:
        track.stage = Stage.PAUSED
        track.not_before = 0
        track.in_flight.clear()
        self._core.pause(track.id, code, reason)

    def _error(self, frame: ErrorFrame, now: int) -> None:
        self._progress_at = now
        error: SyncError = refusal(frame.code, frame.reason, frame.detail)
        track = None if frame.session is None else self.tracks.get(frame.session)
        if track is not None:
            if frame.code == 3008:
                self._pause(track, frame.code, frame.reason)
            elif frame.code in (3017, 3018):
                self._hold_back(track, frame.retry_after_ms, now)
            else:
                raise Reconnect(str(error))
            return
        match frame.code:
            case 3006 | 3016:
                raise ReplicaCloned(frame.reason)
            case 3010:
                raise UnknownVersion(frame.reason, **frame.detail)
            case 3001:
                # What this end remembers of a bootstrap may be what the server cannot read (it may
                # be another version by now): asking the same again would never end.
                for booting in self.tracks.values():
                    if booting.stage is Stage.BOOTING:
                        self._core.abandon_bootstrap(booting.id)
                raise Reconnect(str(error))
            case 3017 | 3018:
                raise Reconnect(str(error))
            case _:
                raise error

    def _send(self, frame: Frame) -> None:
        self._out.append(encode_frame(frame))
