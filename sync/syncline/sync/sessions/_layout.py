"""How a session lies in records, so that two devices' changes merge.

What may be changed apart is a field of its own, or a record of its own:

- the header (``$session/header``): ``status``, ``label``, ``agent``, ``parent``, ``definition``,
  ``prompt``, ``model``, ``task``, ``execution``, ``created_at`` and, for each key of the metadata,
  ``metadata.<key>`` (nil: taken away). A deletion sets ``deleted``, for good.
- each message is a record of ``agent_messages`` under its id, with an ``order``: microseconds when
  it was first stored, but always above the message before it. So the lists of two devices become
  one, each device's messages in their order.
- each key of the data is a record of ``agent_data`` with the field ``value``.

``saved`` is written with every save, always the same: it carries the time of the last save, and as
equal values never conflict, it costs nobody anything. A record of a header that somebody else made
is read as far as it makes sense.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from .._errors import InvalidValue
from .._names import AGENT_DATA, AGENT_MESSAGES, HEADER_COLLECTION, HEADER_ID
from .._values import Value, copy_fields, same
from ._session import (
    AgentDefinition,
    AgentSession,
    AgentState,
    ExecutionStatus,
    Message,
    SessionHeader,
    SessionStatus,
    task_from_value,
    task_to_value,
)

METADATA = "metadata."

Fields = Mapping[str, Value]


@dataclass(slots=True)
class SessionRecords:
    """The records of one session that are the runtime's: living ones, as they show."""

    header: Fields | None = None
    messages: dict[str, Fields] = field(default_factory=dict)
    data: dict[str, Fields] = field(default_factory=dict)

    def take(self, collection: str, id_: str, fields: Fields | None) -> None:
        """Note a record; None is one that is dead. Other collections are passed over."""
        if collection == HEADER_COLLECTION:
            self.header = fields
        elif collection in (AGENT_MESSAGES, AGENT_DATA):
            kept = self.messages if collection == AGENT_MESSAGES else self.data
            if fields is None:
                kept.pop(id_, None)
            else:
                kept[id_] = fields

    @property
    def there(self) -> bool:
        """Whether there is such a session."""
        return self.header is not None and not self.header.get("deleted")


class RecordWrite(NamedTuple):
    """One change to write; ``fields`` is empty for a deletion."""

    kind: Literal["put", "patch", "delete"]
    collection: str
    id: str
    fields: dict[str, Value]


def read_header(id_: str, header: Fields, *, version: int, updated_at: int) -> SessionHeader:
    """The header as a list shows it."""
    created_at = header.get("created_at")
    return SessionHeader(
        id_,
        _text(header.get("agent")),
        _text(header.get("label")),
        _text(header.get("parent")) or None,
        _enum(SessionStatus, header.get("status"), SessionStatus.ACTIVE),
        version,
        created_at if type(created_at) is int else 0,
        updated_at,
    )


def read_session(
    id_: str, records: SessionRecords, *, version: int, updated_at: int
) -> AgentSession:
    """The session that these records are. There is a header."""
    header = records.header
    assert header is not None
    shown = read_header(id_, header, version=version, updated_at=updated_at)
    prompt, task = header.get("prompt"), header.get("task", "")
    state = AgentState(
        tuple(_message(key, records.messages[key]) for key in _in_order(records.messages)),
        {
            name.removeprefix(METADATA): value
            for name, value in header.items()
            if name.startswith(METADATA) and name != METADATA
        },
        _or(lambda: task_from_value(task), ""),
        prompt if type(prompt) is str else None,
        _model(header.get("model")),
        _enum(ExecutionStatus, header.get("execution"), ExecutionStatus.PENDING),
        {key: fields.get("value") for key, fields in records.data.items()},
    )
    definition: Any = header.get("definition")
    read = _or(lambda: AgentDefinition.from_dict(definition), None)
    return AgentSession(shown, read or AgentDefinition(shown.agent, shown.label), state)


def session_changes(
    before: SessionRecords,
    session: AgentSession,
    *,
    now: int,
    new_id: Callable[[], str],
) -> tuple[list[RecordWrite], AgentSession]:
    """What to write so that ``before`` becomes ``session``, and the session with all ids given.

    Only what differs is written; of the header, at least ``saved``.
    """
    session = session.with_state(session.state.with_message_ids(new_id))
    fields = _header_fields(session)
    shown: Fields = {}
    if before.header is not None:
        header_alone = SessionRecords(before.header)
        old = read_session(session.id, header_alone, version=0, updated_at=0)
        shown = _header_fields(old)
    patch = {
        name: value
        for name, value in fields.items()
        if before.header is None or name not in shown or not same(value, shown[name])
    }
    patch.update({name: None for name in shown if name not in fields})
    header = RecordWrite("patch", HEADER_COLLECTION, HEADER_ID, {**patch, "saved": True})
    return [
        header,
        *_message_changes(before.messages, session.state.messages, now),
        *_data_changes(before.data, session.state.data),
    ], session


def deletion(before: SessionRecords) -> list[RecordWrite]:
    """What to write so that the session is gone."""
    gone = {"status": SessionStatus.DELETED.value, "deleted": True, "saved": True}
    return [
        RecordWrite("patch", HEADER_COLLECTION, HEADER_ID, gone),
        *(RecordWrite("delete", AGENT_MESSAGES, id_, {}) for id_ in sorted(before.messages)),
        *(RecordWrite("delete", AGENT_DATA, key, {}) for key in sorted(before.data)),
    ]


def _header_fields(session: AgentSession) -> dict[str, Value]:
    header, state = session.header, session.state
    fields: dict[str, Value] = {
        "agent": header.agent,
        "label": header.label,
        "parent": header.parent_id,
        "status": header.status.value,
        "created_at": header.created_at,
        "definition": session.definition.to_dict(),
        "prompt": state.system_prompt,
        "model": state.model,
        "task": task_to_value(state.task),
        "execution": state.execution.value,
    }
    fields.update({f"{METADATA}{key}": value for key, value in state.metadata.items()})
    return copy_fields(fields)


def _message_changes(
    before: Mapping[str, Fields], messages: tuple[Message, ...], now: int
) -> list[RecordWrite]:
    ids = [message.id for message in messages]
    if len(set(ids)) != len(ids):
        raise InvalidValue("two messages have one id", path="messages")
    orders = _orders([_order(before[id_]) if id_ in before else None for id_ in ids], now)
    writes = [RecordWrite("delete", AGENT_MESSAGES, id_, {}) for id_ in sorted({*before} - {*ids})]
    for message, order in zip(messages, orders, strict=True):
        old = before.get(message.id)
        if old is not None and _is_as_written(old, message, order):
            continue
        fields = {**message.to_dict(), "order": order}
        del fields["id"]
        if old is None:
            writes.append(RecordWrite("put", AGENT_MESSAGES, message.id, fields))
            continue
        shown = {**_message(message.id, old).to_dict(), "order": _order(old)}
        patch = {name: value for name, value in fields.items() if not same(value, shown[name])}
        if patch:
            writes.append(RecordWrite("patch", AGENT_MESSAGES, message.id, patch))
    return writes


def _is_as_written(fields: Fields, message: Message, order: int) -> bool:
    """Whether a message is what its record says: that of most, with each save."""
    return (
        fields.get("order") == order
        and fields.get("role") == message.role
        and same(fields.get("content"), message.content)
        and same(fields.get("metadata"), dict(message.metadata))
    )


def _orders(known: list[int | None], now: int) -> list[int]:
    """Rising places in the list: known ones are kept where they rise, new ones fit between."""
    orders: list[int] = []
    last = -1
    at = 0
    while at < len(known):
        own = known[at]
        if own is not None:
            last = own if own > last else last + 1
            orders.append(last)
            at += 1
            continue
        run = at
        while run < len(known) and known[run] is None:
            run += 1
        count = run - at
        after = known[run] if run < len(known) else None
        # At the end of the list: now. Before a message: right below it, if there is room.
        first = max(last + 1, now) if after is None else max(last + 1, after - count)
        orders.extend(range(first, first + count))
        last = first + count - 1
        at = run
    return orders


def _data_changes(before: Mapping[str, Fields], data: Mapping[str, Value]) -> list[RecordWrite]:
    writes = [RecordWrite("delete", AGENT_DATA, key, {}) for key in sorted({*before} - {*data})]
    for key, value in copy_fields(data).items():
        if key not in before or not same(before[key].get("value"), value):
            writes.append(RecordWrite("put", AGENT_DATA, key, {"value": value}))
    return writes


def _order(fields: Fields) -> int:
    order = fields.get("order")
    return order if type(order) is int else 0


def _in_order(messages: Mapping[str, Fields]) -> list[str]:
    return sorted(messages, key=lambda id_: (_order(messages[id_]), id_))


def _message(id_: str, fields: Fields) -> Message:
    role, metadata = _text(fields.get("role")), fields.get("metadata")
    kept = metadata if type(metadata) is dict else {}
    made = _or(lambda: Message(role, fields.get("content"), id_, kept), None)
    return made or Message("unknown", fields.get("content"), id_, kept)


def _model(value: Value) -> Any:
    return value if type(value) in (str, dict) else None


def _text(value: Value) -> str:
    return value if type(value) is str else ""


def _enum(kind: Any, value: Value, default: Any) -> Any:
    return _or(lambda: kind(value), default)


def _or(make: Callable[[], Any], default: Any) -> Any:
    """What others wrote may be anything: the default stands in for what makes no sense."""
    try:
        return make()
    except (KeyError, TypeError, ValueError, InvalidValue):
        return default
