"""The tools that an agent may call, and what they promise of themselves.

    tools = ToolRegistry()

    class City(BaseModel):
        name: str

    @tools.tool(read_only=True)
    async def weather(city: City) -> str:
        "The weather in a city."
        return await look_up(city.name)

A crash may hit between a tool's effect and its record. What then happens is decided by the
annotations: a tool that is ``read_only`` or ``idempotent`` runs again, any other call is given back
to the model as interrupted, and it decides.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import BaseModel, ValidationError

from syncline.sync import InvalidValue, Value, check_value
from syncline.sync.sessions import Placed, ToolAnnotations

if TYPE_CHECKING:
    from ._agent import Agent

APPROVAL_US = 24 * 3600 * 1_000_000
"""How long a call waits for a person unless its tool says otherwise: a day."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as the model is shown it; ``input_schema`` is a JSON schema."""

    name: str
    description: str
    input_schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may know and do besides its input.

    ``record`` appends an event of the turn (``SessionArtifact``, a connection's, a sandbox's);
    await it. It raises once the turn was cut.
    """

    session_id: str
    turn_id: str
    call_id: str
    record: Callable[[Placed], Any]


class BadCall(Exception):
    """The model asked for something that no tool can run: the sentence is for the model."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool. ``run`` takes the validated input, and a ``ToolContext`` when it has room for it.

    ``needs_approval`` (or a function of the input that says so) parks the call until a person
    decides, for at most ``approval_us`` microseconds (None: for ever). A plain function runs in a
    thread, where nothing can stop it: a turn that is cut goes on without it.
    """

    name: str
    description: str
    input: type[BaseModel]
    run: Callable[..., Any]
    read_only: bool = False
    idempotent: bool = False
    needs_approval: bool | Callable[[Any], bool] = False
    approval_us: int | None = APPROVAL_US

    @property
    def annotations(self) -> ToolAnnotations:
        return ToolAnnotations(read_only_hint=self.read_only, idempotent_hint=self.idempotent)

    def schema(self) -> ToolSchema:
        """As the model is shown it."""
        return ToolSchema(self.name, self.description, self.input.model_json_schema())

    def parse(self, input: Mapping[str, Any]) -> BaseModel:
        """The input, validated. Raises BadCall."""
        try:
            return self.input.model_validate(dict(input))
        except ValidationError as error:
            raise BadCall(f"the input of {self.name} does not fit: {error}") from error

    def parks(self, input: Mapping[str, Any]) -> bool:
        """Whether this call waits for a person. One whose input does not fit need not."""
        if not callable(self.needs_approval):
            return self.needs_approval
        try:
            return self.needs_approval(self.parse(input))
        except BadCall:
            return False

    async def call(self, input: Mapping[str, Any], context: ToolContext) -> Value:
        """Run it. Raises BadCall for input or a result that does not fit, and what it raises."""
        args: tuple[Any, ...] = (self.parse(input),)
        if len(inspect.signature(self.run).parameters) > 1:
            args = (*args, context)
        if inspect.iscoroutinefunction(self.run):
            result = await self.run(*args)
        else:
            result = await asyncio.to_thread(self.run, *args)
        if isinstance(result, BaseModel):
            result = result.model_dump(mode="json")
        try:
            check_value(result, "result")
        except InvalidValue as error:
            raise BadCall(f"{self.name} returned what cannot be stored: {error.reason}") from error
        return result


class _Task(BaseModel):
    """What a subagent is asked."""

    task: str


@dataclass(frozen=True, slots=True)
class Subagent:
    """A tool that is an agent: each call is a child session with one turn.

    Its child is found again after a crash, so a call of it always goes on.
    """

    name: str
    description: str
    agent: Agent

    annotations = ToolAnnotations(idempotent_hint=True)

    def schema(self) -> ToolSchema:
        """As the model is shown it."""
        return ToolSchema(self.name, self.description, _Task.model_json_schema())

    def task(self, input: Mapping[str, Any]) -> str:
        """What the child is asked. Raises BadCall."""
        try:
            return _Task.model_validate(dict(input)).task
        except ValidationError as error:
            raise BadCall(f"the input of {self.name} does not fit: {error}") from error

    def parks(self, input: Mapping[str, Any]) -> bool:
        """Its own calls may; this one does not."""
        return False


class ToolRegistry:
    """Tools by name."""

    def __init__(self, *tools: Tool | Subagent) -> None:
        self._tools: dict[str, Tool | Subagent] = {}
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool | Subagent) -> None:
        """Add one. Raises ValueError when its name is taken."""
        if tool.name in self._tools:
            raise ValueError(
                f"there is a tool {tool.name!r} already: names are what the model uses"
            )
        self._tools[tool.name] = tool

    def tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        input: type[BaseModel] | None = None,
        read_only: bool = False,
        idempotent: bool = False,
        needs_approval: bool | Callable[[Any], bool] = False,
        approval_us: int | None = APPROVAL_US,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Make a tool of a function whose first parameter is a pydantic model.

        Name, description and input are the function's name, docstring and that model unless given.
        Raises TypeError when the parameter is something else.
        """

        def add(run: Callable[..., Any]) -> Callable[..., Any]:
            self.add(
                Tool(
                    name=name or run.__name__,
                    description=description or inspect.getdoc(run) or "",
                    input=_input_of(run) if input is None else input,
                    run=run,
                    read_only=read_only,
                    idempotent=idempotent,
                    needs_approval=needs_approval,
                    approval_us=approval_us,
                )
            )
            return run

        return add

    def get(self, name: str) -> Tool | Subagent | None:
        """The tool of this name."""
        return self._tools.get(name)

    def __iter__(self) -> Iterator[Tool | Subagent]:
        return iter(self._tools.values())

    def schemas(self) -> list[ToolSchema]:
        """All of them, as the model is shown them."""
        return [tool.schema() for tool in self]


def _input_of(run: Callable[..., Any]) -> type[BaseModel]:
    parameters = list(inspect.signature(run).parameters)
    try:
        kind = get_type_hints(run).get(parameters[0]) if parameters else None
    except NameError:  # A model within a function, where annotations are text.
        kind = None
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        raise TypeError(
            f"the first parameter of {run.__name__} must be annotated with a pydantic model: it is"
            " the schema that the model is shown (or hand it in as input=)"
        )
    return kind
