"""Generated events: of every known type, with unknown fields, and of types nobody knows."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from tests.sync.strategies import FIELDS, LEAVES, TEXT, VALUES

from syncline.sync.sessions import EVENT_TYPES, KnownEvent

COUNTS = st.integers(0, 1000)
WORDS = {
    "mode": ["queue", "steer", "interrupt", "some-day"],
    "status": ["running", "idle", "terminated", "asleep"],
    "stopReason": ["completed", "interrupted", "max_turns", "error", "tired"],
    "outcome": ["ok", "denied", "user-aborted", "provider-error", "odd"],
    "decision": ["approved", "denied", "expired", "perhaps"],
}
FREE: dict[str, st.SearchStrategy[Any]] = {
    # No result and a result of null are one: null is left out.
    "result": VALUES.filter(lambda value: value is not None),
    "input": FIELDS,
    "metadata": FIELDS,
    "messageIds": st.lists(TEXT, max_size=3),
    "scopes": st.lists(TEXT, max_size=3),
    "annotations": st.fixed_dictionaries(
        {"readOnlyHint": st.booleans(), "idempotentHint": st.booleans()},
        optional={"title": LEAVES},
    ),
    "toolCalls": st.lists(
        st.fixed_dictionaries({"callId": TEXT, "name": TEXT, "input": FIELDS}), max_size=2
    ),
    "attachments": st.lists(
        st.fixed_dictionaries({"name": TEXT, "mediaType": TEXT}, optional={"data": st.binary()}),
        max_size=2,
    ),
    **{name: st.sampled_from(words) for name, words in WORDS.items()},
}


def payloads(cls: type[KnownEvent]) -> st.SearchStrategy[dict[str, Any]]:
    """Payloads of this type, complete or with only what it needs, and fields of later versions."""
    required: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for name, field in cls.model_fields.items():
        wire = field.alias or name
        made = FREE.get(wire)
        if made is None:
            made = COUNTS if "int" in str(field.annotation) else TEXT
        (required if field.is_required() else optional)[wire] = made
    optional |= {"later": VALUES, "later_still": VALUES}
    return st.fixed_dictionaries(required, optional=optional)


EVERY_EVENT: st.SearchStrategy[tuple[str, dict[str, Any]]] = st.sampled_from(
    sorted(EVENT_TYPES)
).flatmap(lambda type_: st.tuples(st.just(type_), payloads(EVENT_TYPES[type_])))
