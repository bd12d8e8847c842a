"""The coordinator: one transaction for all that was pushed while the last one was committing.

Pure of sockets and clocks. ``commit_group`` takes what every connection pushed, settles it session
by session, appends, commits, and only then returns answers and entries. A group that does not
commit is halved until the op at fault stands alone (an op by itself is refused, and never blocks
others); what was in it meanwhile is asked for by dot, so an unknown commit is a repeat.

Nothing is kept between groups but the count of ops that met a bug.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from syncline.sync import (
    Change,
    LocalError,
    Malformed,
    Op,
    OpRefused,
    Refused,
    ReplicaCloned,
    VoidOp,
    decode_body,
    resolve_conflicts,
)

from ._audit import Author, sign_in_row
from ._auth import ANONYMOUS
from ._settling import REPEAT_BYTES_MAX, SessionWork, busy
from ._store import Device, Head, Identity, LogRow, Store, Transaction

AHEAD_US_MAX = 60_000_000
BUG_TRIES_MAX = 3
"""An op that meets a bug is tried so often; then it is refused for good, to block nothing."""
BUGS_KNOWN_MAX = 1024

_log = logging.getLogger("syncline.server")


@dataclass(slots=True, eq=False)
class Lane:
    """One session's pushes on one connection.

    After a refusal that was not final, pushes that begin above ``resend_from`` are set aside
    unanswered: the client sends them again from there.
    """

    resend_from: int | None = None


@dataclass(frozen=True, slots=True)
class PushedOps:
    """One push: ops of one client for one session, in the order of their numbers."""

    session: str
    author: Author
    ops: Sequence[Op | VoidOp]
    lane: Lane


@dataclass(frozen=True, slots=True)
class SignIn:
    """A client's new incarnation, to be remembered before it is welcomed."""

    client: str
    incarnation: int
    principal: str = ANONYMOUS.name


@dataclass(frozen=True, slots=True)
class Committed:
    """What a transaction added to a session: rows after ``previous_seq``, and the head then."""

    session: str
    previous_seq: int
    previous_hash: bytes
    rows: Sequence[LogRow]
    head: Head
    created: bool


@dataclass(slots=True)
class GroupResult:
    """What came of a group. ``answers`` by push, ``sign_ins`` by sign-in (None: welcome).

    ``uncertain`` says that a transaction failed, perhaps after it was durable: heads may be
    further than ``committed`` tells.
    """

    answers: list[list[OpRefused]]
    sign_ins: list[Refused | None]
    committed: list[Committed] = field(default_factory=list)
    uncertain: bool = False


@dataclass(frozen=True, slots=True)
class _Slice:
    """A push, or a part of it while the op at fault is looked for."""

    index: int
    push: PushedOps
    ops: Sequence[Op | VoidOp]

    @property
    def is_set_aside(self) -> bool:
        resend_from = self.push.lane.resend_from
        return resend_from is not None and self.ops[0].n > resend_from


class SyncCoordinator:
    """Takes ops in order, settles, appends, commits. See the module."""

    resolve_conflicts = staticmethod(resolve_conflicts)

    def __init__(self, store: Store, *, ahead_us_max: int = AHEAD_US_MAX) -> None:
        self._store = store
        self._ahead_us_max = ahead_us_max
        self._bug_tries: dict[tuple[str, str, int, bytes], int] = {}

    def commit_group(
        self, pushes: Sequence[PushedOps], now: int, sign_ins: Sequence[SignIn] = ()
    ) -> GroupResult:
        """Settle and commit. ``now`` is microseconds since the Unix epoch. Never raises."""
        result = GroupResult([[] for _ in pushes], [None for _ in sign_ins])
        slices = [_Slice(at, push, push.ops) for at, push in enumerate(pushes) if push.ops]
        passed: set[SignIn] = set()
        failure = self._attempt(slices, sign_ins, now, result, passed)
        if failure is None:
            return result
        if sign_ins and (failure := self._attempt([], sign_ins, now, result, passed)) is not None:
            result.sign_ins = [busy(_reason(failure)) for _ in sign_ins]
        self._retry(slices, now, result)
        return result

    def _retry(self, slices: list[_Slice], now: int, result: GroupResult) -> None:
        """Commit what can be, halving; slices before the middle always come first."""
        slices = [part for part in slices if not part.is_set_aside]
        if not slices:
            return
        failure = self._attempt(slices, (), now, result)
        if failure is None:
            return
        if len(slices) > 1:
            middle = len(slices) // 2
            first, second = slices[:middle], slices[middle:]
        elif len(slices[0].ops) > 1:
            one = slices[0]
            middle = len(one.ops) // 2
            first = [_Slice(one.index, one.push, one.ops[:middle])]
            second = [_Slice(one.index, one.push, one.ops[middle:])]
        else:
            one = slices[0]
            op = one.ops[0]
            _log.error("op %d for session %s failed: %s", op.n, one.push.session, failure)
            result.answers[one.index].append(_refused(one.push, op, busy(_reason(failure))))
            one.push.lane.resend_from = op.n
            return
        self._retry(first, now, result)
        self._retry(second, now, result)

    def _attempt(
        self,
        slices: Sequence[_Slice],
        sign_ins: Sequence[SignIn],
        now: int,
        result: GroupResult,
        passed: set[SignIn] | None = None,
    ) -> Exception | None:
        """One transaction. Into ``result`` only when it is committed; else why it is not.

        ``passed`` are sign-ins of which an attempt was good and perhaps durable, though it failed:
        they find their own incarnation there, and are no copies.
        """
        passed = set() if passed is None else passed
        attempt = _Attempt(self, now, passed)
        try:
            with self._store.transaction() as tx:
                attempt.run(tx, self._store.identity(), slices, sign_ins)
        except Exception as error:
            # Whatever a store raises: the group is rolled back or unknown, and is tried again.
            _log.warning("a group of %d pushes did not commit: %s", len(slices), error)
            result.uncertain = True
            passed.update(
                sign_in
                for sign_in, refused in zip(sign_ins, attempt.sign_ins, strict=False)
                if refused is None
            )
            return error
        for index, answer in attempt.answers:
            result.answers[index].append(answer)
        for lane, resend_from in attempt.lanes.items():
            lane.resend_from = resend_from
        if sign_ins:
            result.sign_ins = attempt.sign_ins
        for work in attempt.works.values():
            head = work.head
            if head is not None and (work.rows or work.created):
                result.committed.append(
                    Committed(
                        work.session,
                        work.previous_seq,
                        work.previous_hash,
                        work.rows,
                        head,
                        work.created,
                    )
                )
        return None

    def work(self, tx: Transaction, identity: Identity, session: str, now: int) -> SessionWork:
        return SessionWork(tx, session, identity, now, self._ahead_us_max)

    def met_bug(self, work: SessionWork, push: PushedOps, op: Op | VoidOp) -> bool:
        """Count a bug that this op met; whether it has had all its tries."""
        salt = op.running if isinstance(op, VoidOp) else op.salt
        key = (work.session, push.author.client, op.n, salt)
        tries = self._bug_tries.pop(key, 0) + 1
        self._bug_tries[key] = tries
        if len(self._bug_tries) > BUGS_KNOWN_MAX:
            del self._bug_tries[next(iter(self._bug_tries))]
        return tries > BUG_TRIES_MAX


class _Attempt:
    """What one transaction would change outside of the store, should it commit."""

    def __init__(self, coordinator: SyncCoordinator, now: int, passed: Collection[SignIn]) -> None:
        self.works: dict[str, SessionWork] = {}
        self.answers: list[tuple[int, OpRefused]] = []
        self.lanes: dict[Lane, int | None] = {}
        self.sign_ins: list[Refused | None] = []
        self._coordinator = coordinator
        self._now = now
        self._passed = passed

    def run(
        self,
        tx: Transaction,
        identity: Identity,
        slices: Sequence[_Slice],
        sign_ins: Sequence[SignIn],
    ) -> None:
        for sign_in in sign_ins:
            again = sign_in in self._passed
            self.sign_ins.append(_sign_in(tx, identity, sign_in, self._now, again=again))
        for part in slices:
            session = part.push.session
            work = self.works.get(session)
            if work is None:
                work = self._coordinator.work(tx, identity, session, self._now)
                self.works[session] = work
            self._push(work, part)
        for work in self.works.values():
            work.write()

    def _push(self, work: SessionWork, part: _Slice) -> None:
        push, lane = part.push, part.push.lane
        resend_from = self.lanes.get(lane, lane.resend_from)
        if resend_from is not None and part.ops[0].n > resend_from:
            return
        self.lanes[lane] = None
        decoded = _decoded(part.ops, work.last(push.author.client).n)
        work.load(part.ops, decoded)
        repeat_bytes = 0
        for op, changes in zip(part.ops, decoded, strict=True):
            try:
                if repeat_bytes > REPEAT_BYTES_MAX:
                    raise busy("so many repeats in one push are answered in parts")
                answer = work.take(push.author, op, changes)
            except LocalError:
                raise
            except Refused as refused:
                self._set_aside(part, op, refused)
                return
            except Exception as error:
                _log.exception("a bug, met by op %d for session %s", op.n, push.session)
                given_up = self._coordinator.met_bug(work, push, op)
                due = op.n == work.last(push.author.client).n + 1
                if not given_up or not due or isinstance(op, VoidOp):
                    self._set_aside(part, op, busy(_reason(error)))
                    return
                answer = work.refuse(push.author, op, Malformed(_reason(error)))
            if answer is not None:
                repeat_bytes += len(answer.entry or b"")
                self.answers.append((part.index, answer))

    def _set_aside(self, part: _Slice, op: Op | VoidOp, refused: Refused) -> None:
        self.answers.append((part.index, _refused(part.push, op, refused)))
        self.lanes[part.push.lane] = op.n


def _sign_in(
    tx: Transaction, store: Identity, sign_in: SignIn, now: int, *, again: bool
) -> Refused | None:
    if sign_in.client == store.store_id:
        return ReplicaCloned("this client id is the server's own", incarnation=0)
    known = tx.device(sign_in.client)
    if known.principal not in (None, ANONYMOUS.name, sign_in.principal):
        # Whoever may sign in could else write under the name of somebody else's device.
        return ReplicaCloned(f"client {sign_in.client} is another's", incarnation=0)
    if sign_in.incarnation < known.incarnation + (not again):
        return ReplicaCloned(
            f"client {sign_in.client} was here later than this replica remembers",
            incarnation=known.incarnation,
        )
    if known.incarnation < sign_in.incarnation:
        author = Author(sign_in.client, sign_in.principal)
        tx.set_device(sign_in.client, Device(sign_in.incarnation, sign_in.principal))
        tx.write_ledger([sign_in_row(now, author, sign_in.incarnation)])
    return None


def _decoded(ops: Sequence[Op | VoidOp], last: int) -> list[list[Change] | Exception | None]:
    """The changes of each op that is not a repeat, or what is wrong with its body."""
    decoded: list[list[Change] | Exception | None] = []
    for op in ops:
        if op.n <= last or isinstance(op, VoidOp):
            decoded.append(None)
            continue
        try:
            decoded.append(decode_body(op.body))
        except Exception as error:
            # A refusal or a bug: raised again when it is this op's turn.
            decoded.append(error)
    return decoded


def _refused(push: PushedOps, op: Op | VoidOp, refused: Refused) -> OpRefused:
    return OpRefused(
        session=push.session,
        n=op.n,
        code=refused.code,
        reason=refused.reason[:4096],
        detail=dict(refused.detail),
        final=False,
    )


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
