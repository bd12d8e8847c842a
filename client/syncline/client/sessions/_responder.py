"""What answers a model request: an async function that streams the parts of an answer.

    async def respond(request: ModelRequest) -> AsyncIterator[Part]:
        async for piece in my_model(request.prompt):
            yield TextDelta(piece)
        yield Consumed(Meter(input_tokens=120, output_tokens=34))

The end of the stream is the end of the answer; raising is a failure of the provider's. Parts may
come in any order: text is put together, calls are taken in the order they come, and of ``Consumed``
the newest counts, so that a stream that is cut has said what it cost so far.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from syncline.sync import Value
from syncline.sync.sessions import Meter, PromptAgent, PromptItem

from ._tools import ToolSchema


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What a model is asked. ``id`` stays the same when a lost request is issued again."""

    id: str
    session_id: str
    turn_id: str
    step: int
    prompt: Sequence[PromptItem]
    tools: Sequence[ToolSchema] = ()
    instructions: str = ""
    model: str | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of what the model says."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what it thinks."""

    text: str


@dataclass(frozen=True, slots=True)
class InputDelta:
    """More of a call's arguments, to be watched only: ``Asked`` is what counts."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A call of a tool."""

    name: str
    input: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Consumed:
    """What the request has consumed so far, in all."""

    meter: Meter


@dataclass(frozen=True, slots=True)
class Degraded:
    """Something did not go as it should, and the answer goes on."""

    error: str
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """Why the model stopped, in its provider's word."""

    reason: str


Part = TextDelta | ReasoningDelta | InputDelta | Asked | Consumed | Degraded | Finished
Responder = Callable[[ModelRequest], AsyncIterator[Part]]

Scripted = str | Exception | Sequence[Part]
"""An answer by script: a text, parts, or a failure."""


class ScriptedResponder:
    """Answers from a script, for tests, demonstrations and dry runs.

    ``script`` is a function of the request, or a list of answers, of which the one is given whose
    number is that of the messages the agent has said so far. So it depends on the log alone: a
    request that is issued again after a crash gets the same answer. An exhausted list says nothing
    more than its last answer again. ``requests`` keeps what was asked.
    """

    def __init__(self, script: Sequence[Scripted] | Callable[[ModelRequest], Scripted]) -> None:
        if not callable(script) and not script:
            raise ValueError("a script has at least one answer")
        self._script = script
        self.requests: list[ModelRequest] = []

    async def __call__(self, request: ModelRequest) -> AsyncIterator[Part]:
        self.requests.append(request)
        for part in _parts(self._answer(request)):
            yield part

    def _answer(self, request: ModelRequest) -> Scripted:
        if callable(self._script):
            return self._script(request)
        said = sum(isinstance(item, PromptAgent) for item in request.prompt)
        return self._script[min(said, len(self._script) - 1)]


def _parts(answer: Scripted) -> Iterable[Part]:
    if isinstance(answer, Exception):
        raise answer
    if not isinstance(answer, str):
        return answer
    words = answer.split(" ")
    deltas: list[Part] = [TextDelta(w if i == 0 else f" {w}") for i, w in enumerate(words)]
    tokens = Meter(input_tokens=len(words), output_tokens=len(words))
    return [*deltas, Consumed(tokens)]


@dataclass(slots=True)
class Answer:
    """An answer as it comes together."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    meter: Meter = field(default_factory=Meter)
    finish_reason: str | None = None

    def take(self, part: Part) -> None:
        """Put a part to the others."""
        match part:
            case TextDelta():
                self.text.append(part.text)
            case ReasoningDelta():
                self.reasoning.append(part.text)
            case Asked():
                self.asked.append(part)
            case Consumed():
                self.meter = part.meter
            case Finished():
                self.finish_reason = part.reason

    def fields(self) -> dict[str, Any]:
        """What ``agent.message`` says of it."""
        return {"text": "".join(self.text), "reasoning": "".join(self.reasoning) or None}
