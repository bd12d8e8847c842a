"""What a person does with a session's turns, on any device, offline too: each is a plain append.

None of these needs to know where the turn runs. To cut a turn is to take its lease and to write
its end; whoever runs it finds that out, at once in this process and with the next sync elsewhere,
and stops. What it still writes is stale, and kept as such.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence

from syncline.sync import NotFound, Value
from syncline.sync.sessions import (
    Attachment,
    Decision,
    DeliveryMode,
    Lease,
    Logged,
    Meter,
    Phase,
    Placed,
    StopReason,
    ToolCallDecision,
    Turn,
    TurnState,
    UserMessage,
    closing,
    finished,
    placed,
    reports,
)

from .._core import Core
from .._receipt import Receipt
from .._session import Session
from ._ids import new_message_id
from ._turn_log import TurnLog

LEASE_US = 30_000_000
"""A runner that was not heard from for this long is taken for dead."""

_LOGS: weakref.WeakKeyDictionary[Core, dict[str, TurnLog]] = weakref.WeakKeyDictionary()
CONSUMED: weakref.WeakKeyDictionary[Core, dict[str, Callable[[], Meter]]] = (
    weakref.WeakKeyDictionary()
)
"""By replica and session: what the model request has consumed that is open in this process."""


def turn_state(session: Session) -> TurnState:
    """How the session's turns stand, as this replica shows it: who runs, what waits, what is open.

    A copy: it stays as it is.
    """
    with session._core.database.lock:
        return _log(session._core, session.id).refresh().copy()


def send(
    session: Session,
    text: str,
    *,
    mode: DeliveryMode = DeliveryMode.QUEUE,
    attachments: Sequence[Attachment] = (),
    metadata: Mapping[str, Value] | None = None,
    message_id: str | None = None,
) -> Receipt:
    """Send a message to the agent. It is durable when this returns.

    ``queue``: it is the next turn's. ``steer``: the running turn takes it in before its next step.
    ``interrupt``: the running turn is cut, and this goes before all that is queued. With a
    ``message_id`` of your own you may send again what may not have been sent: it counts once.
    Raises InvalidValue (3019) or TooLarge (3011).
    """
    core = session._core
    message = UserMessage(
        message_id=message_id or new_message_id(),
        text=text,
        mode=DeliveryMode(mode),
        attachments=list(attachments),
        metadata=dict(metadata or {}),
    )
    with session.transaction() as receipt:
        session.append(message.type, message.payload())
        if message.mode is DeliveryMode.INTERRUPT:
            _cut(core, session.id, StopReason.INTERRUPTED)
    return receipt


def interrupt(session: Session) -> bool:
    """Cut the running turn, or the one that rests until a person decides; whether there was one.

    Acts at once. Its subagents are cut with it. A tool call that was open stays open in the log,
    and the model is shown it as interrupted. What the open model request has consumed is counted.
    """
    return cut(session._core, session.id)


abort = interrupt
"""The same by the ledger's word: the turn's last record says ``user-aborted``."""


def decide(
    session: Session,
    call_id: str,
    decision: Decision,
    *,
    by: str | None = None,
    note: str | None = None,
    input: Mapping[str, Value] | None = None,
) -> Receipt:
    """Answer a tool call that waits for a person; its turn goes on wherever it is run.

    ``input`` replaces what the model asked for. Raises NotFound (3113) when no such call waits.
    """
    core = session._core
    with session.transaction() as receipt:
        turn = _log(core, session.id).refresh().unfinished
        call = None if turn is None else turn.calls.get(call_id)
        if turn is None or call is None or call.phase is not Phase.PARKED:
            raise NotFound(f"no tool call {call_id} waits for a decision in session {session.id}")
        event = ToolCallDecision(
            turn_id=turn.id,
            call_id=call_id,
            decision=Decision(decision),
            by=by,
            note=note,
            input=None if input is None else dict(input),
        )
        session.append(event.type, event.payload())
    return receipt


def _log(core: Core, session_id: str) -> TurnLog:
    """The one that these functions share; to be used with the database's lock held."""
    logs = _LOGS.setdefault(core, {})
    if session_id not in logs:
        logs[session_id] = TurnLog(core, session_id)
    return logs[session_id]


def consumed(core: Core, session_id: str) -> Meter | None:
    """What the model request has consumed that is open in this process."""
    meter = CONSUMED.get(core, {}).get(session_id)
    return None if meter is None else meter()


def new_runner(core: Core) -> str:
    """A name that nobody else claims a lease by."""
    return f"{core.client()}-{core.random_bytes(4).hex()}"


def cut(core: Core, session_id: str) -> bool:
    """End the session's turn, as ``interrupt`` does."""
    with core.batch():
        return _cut(core, session_id, StopReason.INTERRUPTED)


def _cut(core: Core, session_id: str, reason: StopReason) -> bool:
    def end(state: TurnState) -> Sequence[Logged]:
        if state.unfinished is None:
            return []
        lease = state.next_lease(new_runner(core))
        return ending(core, session_id, state, lease, reason)

    return _log(core, session_id).append(end) is not None


def ending(
    core: Core,
    session_id: str,
    state: TurnState,
    lease: Lease,
    reason: StopReason,
    *,
    limit: str | None = None,
    error: BaseException | str | None = None,
) -> list[Placed]:
    """The events that end the turn, after its subagents were ended in the same transaction."""
    turn = state.turn
    assert turn is not None
    children = [] if reason is StopReason.SERVER_RESTART else cut_children(core, turn)
    events = closing(
        state,
        reason,
        core.now,
        consumed=consumed(core, session_id),
        children=children,
        limit=limit,
        error=None if error is None else str(error) or repr(error),
        error_type=type(error).__name__ if isinstance(error, BaseException) else None,
    )
    return placed(state, lease, LEASE_US, events, stage_id="end")


def cut_children(core: Core, turn: Turn) -> list[Placed]:
    """End the turn's subagents, and theirs; what they report at last."""
    known = set(core.session_ids())
    made: list[Placed] = []
    for child in turn.children.values():
        if child.session_id not in known:
            continue  # It has not come to this replica: whoever runs it finds itself fenced out.
        log = _log(core, child.session_id)
        _cut(core, child.session_id, StopReason.INTERRUPTED)
        state = log.refresh()
        made += reports(turn, state, child.session_id)
        if state.turn is not None:
            made.append(finished(turn, state, child.session_id))
    return made
