"""What the typed events are made of: their words, their base, their place in a turn.

On the wire and in the log the field names are the source's (``turnId``, ``stopReason``); in Python
they are Python's. Building is strict: nothing is coerced. Closed lists of words read an unknown
word as plain text, since a later version may have more.

Amounts are whole numbers, so that sums are exact in any grouping: tokens, microseconds, and money
in millionths of the currency that the host counts in. Times are microseconds since the Unix epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)
from pydantic.alias_generators import to_camel

from .._values import Value

Word = TypeVar("Word", bound=StrEnum)

Open = Annotated[
    Annotated[Word, Field(strict=False)] | str,
    Field(union_mode="left_to_right"),
    # The log holds plain text, never a subclass of it.
    PlainSerializer(str, return_type=str),
]
"""A word of a list that a later version may lengthen: the member when known, else its text."""

Count = Annotated[int, Field(ge=0)]
"""A whole number of something, from zero."""


class RunStatus(StrEnum):
    """What the log says of a session's running: the newest ``session.status``."""

    RUNNING = "running"
    IDLE = "idle"
    TERMINATED = "terminated"


class StopReason(StrEnum):
    """Why a turn came to rest: carried by every ``session.status`` that says idle."""

    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    MAX_TURNS = "max_turns"
    BUDGET_REACHED = "budget_reached"
    ERROR = "error"
    REQUIRES_ACTION = "requires_action"
    DECISION_EXPIRED = "decision_expired"
    SERVER_RESTART = "server_restart"
    ORPHANED = "orphaned"


class DeliveryMode(StrEnum):
    """When a sent message is taken in.

    With the next turn; at the next step of the running one; or at once, cutting the running turn.
    """

    QUEUE = "queue"
    STEER = "steer"
    INTERRUPT = "interrupt"


class ToolOutcome(StrEnum):
    """How a tool call ended."""

    OK = "ok"
    ERROR = "error"
    INTERRUPTED = "interrupted"
    DENIED = "denied"


class Decision(StrEnum):
    """What a person said to a call that waited for them; nobody's word is ``expired``."""

    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"


class RequestOutcome(StrEnum):
    """Why a model request failed: a cancelled one is no fault of the provider's."""

    USER_ABORTED = "user-aborted"
    PROVIDER_ERROR = "provider-error"
    CANCELLED = "cancelled"


class TurnOutcome(StrEnum):
    """The ledger's word for how a turn ended; ``paused`` is one that may go on."""

    SUCCESS = "success"
    USER_ABORTED = "user-aborted"
    PROVIDER_ERROR = "provider-error"
    ERROR = "error"
    LIMITED = "limited"
    PAUSED = "paused"
    ORPHANED = "orphaned"


class Payload(BaseModel):
    """Data of the log: wire names by alias, unknown fields kept, optional ones left out when None.

    Building one raises pydantic's ValidationError.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="allow",
        frozen=True,
        strict=True,
        validate_by_alias=True,
        validate_by_name=True,
    )

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Only declared fields may be absent; a null within values or unknown fields is content."""
        data: dict[str, Any] = handler(self)
        for name, field in type(self).model_fields.items():
            if field.default is None and getattr(self, name) is None:
                data.pop(field.serialization_alias or name, None)
        return data

    def payload(self) -> dict[str, Value]:
        """What the log stores: plain values under the wire's names."""
        return self.model_dump(by_alias=True)

    @classmethod
    def read(cls, payload: Mapping[str, Value]) -> Self:
        """The model of stored data. Raises pydantic's ValidationError."""
        return cls.model_validate(dict(payload), by_alias=True, by_name=False)


class Logged(Payload):
    """An event of the log."""

    type: ClassVar[str]


class Placed(Logged):
    """An event that may belong to a turn; the first five fields are the ledger's identity tuple.

    (The session's id, its first member, is the log's.) ``turn_id`` is None outside any turn.
    ``stage_id`` names the part of the turn, ``seq_within_turn`` counts its events from 1;
    ``parent_turn_id`` and ``subagent_depth`` say whose subagent runs it. Whoever runs the turn
    fills them in with ``TurnPlace.put`` when it appends.

    ``fence`` and ``runner`` are the lease that it was written under: a number, and whose it is. The
    first event under a new fence claims it: ``over`` is the runner that it takes over from, and
    ``lease_us`` for how many microseconds of silence the new one is believed to live.
    """

    turn_id: str | None = None
    stage_id: str | None = None
    seq_within_turn: Count | None = None
    parent_turn_id: str | None = None
    subagent_depth: Count | None = None
    fence: Count | None = None
    runner: str | None = None
    over: str | None = None
    lease_us: Count | None = None


class InTurn(Placed):
    """An event that always belongs to a turn."""

    turn_id: str


PlacedEvent = TypeVar("PlacedEvent", bound=Placed)


@dataclass(frozen=True, slots=True)
class TurnPlace:
    """Where in which turn something happens, and under which lease; see ``Placed``."""

    turn_id: str
    stage_id: str | None = None
    seq_within_turn: int | None = None
    parent_turn_id: str | None = None
    subagent_depth: int | None = None
    fence: int | None = None
    runner: str | None = None
    over: str | None = None
    lease_us: int | None = None

    def put(self, event: PlacedEvent) -> PlacedEvent:
        """The same event at this place."""
        return event.model_copy(update=asdict(self))


class Attachment(Payload):
    """Something sent along with a message: by address, or small and inline."""

    name: str
    media_type: str = "application/octet-stream"
    url: str | None = None
    data: bytes | None = None


class ToolCall(Payload):
    """A call that the model asked for."""

    call_id: str
    name: str
    input: dict[str, Any] = Field(default_factory=dict)


class ToolAnnotations(Payload):
    """What the tool promises of itself; a crashed call may run again when either is true."""

    read_only_hint: bool = False
    idempotent_hint: bool = False

    @property
    def repeatable(self) -> bool:
        return self.read_only_hint or self.idempotent_hint


class Metered(Payload):
    """What something consumed. ``cost_micros`` is in millionths of the host's currency."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    cache_read_tokens: Count = 0
    cache_write_tokens: Count = 0
    cost_micros: Count = 0


def fit_problem(error: ValidationError) -> str:
    """What does not fit, in one line, without the values."""
    first, *others = error.errors(include_url=False, include_context=False, include_input=False)
    where = ".".join(str(part) for part in first["loc"])
    more = f" (and {len(others)} more)" if others else ""
    return f"{where}: {first['msg']}{more}"
