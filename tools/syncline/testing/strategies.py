"""Hypothesis strategies: records of your own models, histories, wrong clocks, fault schedules.

    from syncline.testing import play_history
    from syncline.testing.strategies import histories

    @given(histories(Recipe))
    def test_every_history_converges(history):
        assert play_history(history).violations == ()

A pydantic model's constraints are kept; what Syncline cannot hold as it is (a date, a UUID, an
enum) becomes what the model's own JSON says. Everything shrinks to something small.
"""

from __future__ import annotations

import typing
from collections import defaultdict
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from msgspec import structs
from pydantic import BaseModel, ValidationError

from syncline.sync import (
    INT_MAX,
    INT_MIN,
    Change,
    Delete,
    Event,
    InvalidValue,
    Patch,
    Put,
    Record,
    RecordChange,
    Stamp,
    Value,
    check_fields,
    check_value,
    fold,
    resolve_conflicts,
)

from ._clock import START_US
from ._extra import needs_extra
from ._histories import COLLECTION, History, Step, Sync, Write
from ._world import FAULTS, Options

with needs_extra("syncline.testing.strategies"):
    from hypothesis import assume
    from hypothesis import strategies as st

__all__ = [
    "WrongClock",
    "clocks",
    "histories",
    "names",
    "records",
    "schedules",
    "values",
]

ITEMS_MAX = 4
TEXT_CHARS_MAX = 12
TICKS_MAX = 40
"""Writes of a history are stamped with so many different times, so that stamps are often equal."""

Model = type[BaseModel] | st.SearchStrategy[Any] | None
"""A pydantic model, or a strategy of its instances or of plain fields; None for any fields."""


# Records.


def values() -> st.SearchStrategy[Value]:
    """Whatever a field may hold."""
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(INT_MIN, INT_MAX)
        | st.floats(allow_nan=False, allow_infinity=False)
        | _texts()
        | st.binary(max_size=TEXT_CHARS_MAX)
    )
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=ITEMS_MAX)
            | st.dictionaries(_texts(), inner, max_size=ITEMS_MAX)
        ),
        max_leaves=8,
    )


def names() -> st.SearchStrategy[str]:
    """Names of fields, collections and records."""
    return st.from_regex(r"[a-z][a-z0-9_]{0,7}", fullmatch=True)


def records(model: Model = None, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The fields of a record, as ``put`` takes them.

    ``model`` is a pydantic model, or a strategy that builds its instances; ``fields`` are
    strategies for some of its fields, in place of what their types say.
    """
    if model is None:
        return st.dictionaries(names(), values(), max_size=ITEMS_MAX)
    instances = model if isinstance(model, st.SearchStrategy) else _instances(model, fields)
    return instances.map(_plain)


def _instances(
    model: type[BaseModel], fields: dict[str, st.SearchStrategy[Any]]
) -> st.SearchStrategy[BaseModel]:
    unknown = sorted(fields.keys() - model.model_fields.keys())
    if unknown:
        raise TypeError(f"{model.__name__} has no field {', '.join(unknown)}")
    drawn = {
        name: fields[name] if name in fields else _typed(info.annotation, tuple(info.metadata))
        for name, info in model.model_fields.items()
    }
    aliases = {name: info.validation_alias for name, info in model.model_fields.items()}

    def build(found: dict[str, Any]) -> BaseModel | None:
        try:
            return model.model_validate(
                {
                    alias if isinstance(alias := aliases[name], str) else name: value
                    for name, value in found.items()
                }
            )
        except ValidationError:
            return None

    built = st.fixed_dictionaries(drawn).map(build)
    return built.filter(lambda made: made is not None)  # type: ignore[return-value]


def _typed(kind: Any, metadata: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    """Values of a type: as Hypothesis knows it, but within what Syncline holds, and models."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _typed(args[0], (*args[1:], *metadata))
    if kind is Any or kind is object:
        return values()
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return st.deferred(lambda: _instances(kind, {}))
    if origin in (Union, UnionType):
        # None first: that is what a union shrinks to, and what ends a model that holds itself.
        ordered = sorted(args, key=lambda arg: arg is not NoneType)
        return st.one_of([_typed(arg, () if arg is NoneType else metadata) for arg in ordered])
    if _holds_model(kind) and origin in (list, dict):
        inner = _typed(args[-1])
        low, high = _sizes(metadata)
        if origin is list:
            return st.lists(inner, min_size=low, max_size=high)
        return st.dictionaries(_typed(args[0]), inner, min_size=low, max_size=high)
    pattern = next((found for one in metadata if (found := _pattern(one))), None)
    if pattern is not None:
        return st.from_regex(pattern)
    if kind is str:
        low, high = _sizes(metadata, TEXT_CHARS_MAX)
        return st.text(st.characters(exclude_categories=["Cs"]), min_size=low, max_size=high)
    annotated: Any = Annotated[(kind, *metadata)] if metadata else kind
    found = st.from_type(annotated)
    return found.filter(_holds) if kind in (int, float) else found


def _texts() -> st.SearchStrategy[str]:
    return _typed(str)


def _holds_model(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return True
    return any(_holds_model(arg) for arg in get_args(kind))


def _sizes(metadata: tuple[Any, ...], usual: int = ITEMS_MAX) -> tuple[int, int]:
    low = max((one.min_length for one in metadata if hasattr(one, "min_length")), default=0)
    bounds = [one.max_length for one in metadata if getattr(one, "max_length", None) is not None]
    return low, min([max(usual, low), *bounds])


def _pattern(constraint: Any) -> Any:
    return getattr(constraint, "pattern", None)


def _holds(value: Value) -> bool:
    try:
        check_value(value)
    except InvalidValue:
        return False
    return True


def _plain(made: BaseModel | dict[str, Value]) -> dict[str, Value]:
    """The fields of a model's instance, in what Syncline holds."""
    if not isinstance(made, BaseModel):
        return check_fields(made)
    found = made.model_dump()
    odd = {name for name, value in found.items() if not _holds(value)}
    if odd:
        found |= made.model_dump(mode="json", include=odd)
    assume(all(map(_holds, found.values())))
    return check_fields(found)


# Histories.


def histories(
    model: Model = None,
    *,
    collection: str = COLLECTION,
    devices: int = 3,
    ids: int = 2,
    steps_max: int = 16,
    **fields: st.SearchStrategy[Any],
) -> st.SearchStrategy[History]:
    """Several devices that write to few records, so that they collide, and sync now and then.

    Their clocks disagree, run backwards and often say the same. Records are ``records(model,
    **fields)`` in ``collection``. To play one, see ``syncline.testing.play_history``.
    """
    return _histories(records(model, **fields), collection, devices, ids, steps_max)


@st.composite
def _histories(
    draw: st.DrawFn,
    fields: st.SearchStrategy[dict[str, Value]],
    collection: str,
    devices: int,
    ids: int,
    steps_max: int,
) -> History:
    steps: list[Step] = []
    sight = _Sight()
    for _ in range(draw(st.integers(1, steps_max))):
        device = f"d{draw(st.integers(0, devices - 1))}"
        if draw(st.integers(0, 2)) == 0:
            steps.append(Sync(device))
            sight.sync(device)
            continue
        at = START_US + draw(st.integers(0, TICKS_MAX)) * 1000
        changes: list[Change] = []
        for place in draw(st.lists(st.integers(0, ids - 1), min_size=1, max_size=2, unique=True)):
            id_ = f"r{place}"
            kinds = ["put", "patch", "delete"] if sight.alive(device, id_) else ["put", "delete"]
            kind = draw(st.sampled_from(kinds))
            drawn = draw(fields) if kind != "delete" else {}
            change: RecordChange
            if kind == "put":
                change = Put(collection, id_, {}, drawn)
            elif kind == "patch":
                kept = {name: value for name, value in drawn.items() if draw(st.booleans())}
                change = Patch(collection, id_, {}, kept)
            else:
                change = Delete(collection, id_, {})
            changes.append(change)
            sight.write(device, len(steps) + 1, change, at)
        if draw(st.integers(0, 7)) == 7:
            changes.append(Event("said", {"step": len(steps)}))
        steps.append(Write(device, (at,) * len(changes), tuple(changes)))
    return History(tuple(steps))


class _Sight:
    """What each device sees as a history goes on, so that nobody patches what is not there."""

    def __init__(self) -> None:
        self._server: dict[str, Record] = {}
        self._seen: dict[str, dict[str, Record]] = defaultdict(dict)

    def alive(self, device: str, id_: str) -> bool:
        record = self._seen[device].get(id_)
        return record is not None and record.alive

    def write(self, device: str, n: int, change: RecordChange, at: int) -> None:
        before = self._seen[device].get(change.id)
        if before is not None:
            change = structs.replace(change, context=before.vector)
            at = max(at, before.life.updated_at + 1)
        self._seen[device][change.id] = fold(before, change, Stamp(at, device, n), None)

    def sync(self, device: str) -> None:
        for id_, mine in self._seen[device].items():
            theirs = self._server.get(id_, mine)
            self._server[id_] = resolve_conflicts(theirs, mine).record
        self._seen[device] = dict(self._server)


# Clocks and faults.


@dataclass(slots=True)
class WrongClock:
    """A clock for ``Replica(clock=...)``: off by some, ticking at each reading, and jumping.

    ``jumps`` has by how many microseconds it jumps at which reading.
    """

    start_us: int
    tick_us: int
    jumps: dict[int, int]
    readings: int = 0

    def __call__(self) -> int:
        self.start_us += self.tick_us + self.jumps.get(self.readings, 0)
        self.readings += 1
        return max(1, self.start_us)


def clocks(around_us: int = START_US) -> st.SearchStrategy[WrongClock]:
    """Clocks that are off by up to a day, may stand still, and jump now and then."""
    day_us = 86_400_000_000
    return st.builds(
        WrongClock,
        st.integers(-day_us, day_us).map(lambda off: around_us + off),
        st.sampled_from((1_000, 0, 1, 1_000_000)),
        st.dictionaries(st.integers(0, 50), st.integers(-day_us, day_us), max_size=3),
        st.just(0),
    )


def schedules(
    faults: typing.Sequence[str] = FAULTS, *, writes_max: int = 40
) -> st.SearchStrategy[Options]:
    """Options of a simulated world: how many devices and writes, and which faults strike.

    ``syncline.testing.play(seed, options)`` plays it; the seed says when they strike.
    """
    kinds = st.lists(st.sampled_from(list(faults)), unique=True).map(tuple)
    return st.builds(
        Options,
        devices=st.integers(2, 4),
        faults=kinds,
        writes=st.integers(4, writes_max),
    )
