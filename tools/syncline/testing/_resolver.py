"""``check_resolver``: the laws without which devices that see the same writes disagree.

A **resolver** is a function of two states of one record that returns one state. A state is a
``syncline.sync.Record``: ``fields``, the ``stamps`` that wrote them, whether it is ``alive``; the
resolver may return either of its arguments, or a new one (``a._replace(fields=...)``). Whoever
returns a ``Resolution``, as ``syncline.sync.resolve_conflicts`` does, is asked for its ``record``.

States reach a device in any order, in any grouping, and more than once. So whatever the resolver
does, a reader must see the same after

    total           any two states: it returns a state, with values that a field may hold
    deterministic   the same states once more, equal but made anew; and the arguments as they were
    idempotent      a state and itself
    commutative     two states the other way round
    associative     three states, whichever two come together first

The states are such as happen: three devices write one record (puts, patches, deletes, with clocks
that often say the same) and hear of each other, through the resolver, or do not. What a reader sees
is compared (the fields, or that the record is deleted), not stamps and vectors.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from syncline.sync import (
    Delete,
    InvalidValue,
    Patch,
    Put,
    Record,
    RecordChange,
    Resolution,
    Stamp,
    Value,
    check_fields,
    copy_fields,
    fold,
    same,
)

from ._extra import needs_extra
from .strategies import Model, records

with needs_extra("syncline.testing.check_resolver"):
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st
    from hypothesis.errors import Flaky

Resolver = Callable[[Record, Record], Record | Resolution]

EXAMPLES = 200
ACTIONS_MAX = 8
TICKS_MAX = 4
DEVICES = ("ann", "bob", "cyd")
STORY_CHARS_MAX = 300


class WrongResolver(AssertionError):
    """A resolver broke a law: ``law`` is its name, ``story`` the smallest case found."""

    def __init__(self, law: str, story: str) -> None:
        super().__init__(law, story)
        self.law = law
        self.story = story

    def __str__(self) -> str:
        return f"the resolver is not {self.law}\n{textwrap.indent(self.story, '  ')}"


def check_resolver(resolver: Resolver, model: Model = None, *, examples: int = EXAMPLES) -> None:
    """Raise WrongResolver with the smallest counterexample when the resolver breaks a law.

    ``model`` is a pydantic model of the record, or a strategy of its instances (see
    ``syncline.testing.strategies.records``); what the resolver returns must then be one, too.
    ``examples`` is how many cases each law is tried on; the same ones on every run.
    """
    subject = _Subject(resolver, model if isinstance(model, type) else None)
    fields = _FIELDS if model is None else records(model)
    try:
        _try([*_LAWS.values()], subject, fields, examples)
    except WrongResolver as found:
        # Which law a case breaks first is chance: the first of the list that can be broken counts.
        for name, law in _LAWS.items():
            if name == found.law:
                break
            _try([law], subject, fields, examples)
        raise found from None


class _State(NamedTuple):
    """A device's state of the record, and what had happened to it. ``found`` is None at first."""

    owner: str
    found: Record | None
    story: tuple[str, ...]

    @property
    def record(self) -> Record:
        assert self.found is not None, "every device begins with a record"
        return self.found


class _Subject:
    """The resolver under trial, with names for what goes in and comes out."""

    def __init__(self, resolver: Resolver, model: type[BaseModel] | None) -> None:
        self._resolver = resolver
        self.model = model

    def __call__(self, a: Record, b: Record) -> Record:
        """What the resolver makes of copies of them. Raises _Failed when that is no state."""
        given_a, given_b = _copy(a), _copy(b)
        try:
            made = self._resolver(given_a, given_b)
        except Exception as error:
            raise _Failed(f"raises {type(error).__name__}: {error}") from error
        for before, after in ((a, given_a), (b, given_b)):
            if after != before:
                what = f"changes its argument {_shown(before)} to {_shown(after)}"
                raise _Failed(what, law="deterministic")
        record = made.record if isinstance(made, Resolution) else made
        if not isinstance(record, Record):
            raise _Failed(f"returns {_short(record)}, which is no Record")
        try:
            check_fields(record.fields)
        except InvalidValue as error:
            raise _Failed(f"returns what no field may hold: {error.reason}") from error
        if self.model is not None and record.visible is not None:
            try:
                self.model.model_validate(record.visible)
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]
                where = ".".join(map(str, first["loc"])) or "the whole"
                raise _Failed(
                    f"returns {_shown(record)}, which is no {self.model.__name__}:"
                    f" {where}: {first['msg']}"
                ) from error
        return record


class _Failed(Exception):
    """The resolver did not return a state, or more than that; the message says what it did."""

    def __init__(self, did: str, law: str = "total") -> None:
        super().__init__(did)
        self.law = law


_T = TypeVar("_T")


class Draw(Protocol):
    """What draws an example of a strategy."""

    def __call__(self, strategy: st.SearchStrategy[_T], /) -> _T: ...


Law = Callable[[_Subject, _State, _State, _State], None]


def _try(
    laws: Sequence[Law],
    subject: _Subject,
    fields: st.SearchStrategy[dict[str, Value]],
    examples: int,
) -> None:
    """Try laws on drawn states; what fails is shrunk before it is told."""
    failures: list[WrongResolver] = []

    # The same cases on every run, none kept between runs: a suite that passed passes again.
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=True,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def hold(data: st.DataObject) -> None:
        try:
            states = _draw_states(data.draw, fields, subject)
            for law in laws:
                law(subject, *states)
        except WrongResolver as broken:
            failures.append(broken)
            raise

    try:
        hold()
    except WrongResolver as broken:
        # Without what Hypothesis adds: the story says it all, and shorter.
        raise WrongResolver(broken.law, broken.story) from None
    except Flaky:
        # The same states failed once and held the next time.
        story = failures[0].story if failures else "the same states were resolved differently"
        raise WrongResolver("deterministic", story) from None


# The laws.


def _total(subject: _Subject, a: _State, b: _State, c: _State) -> None:
    for one, other in ((a, b), (b, a), (a, c), (c, b), (a, a)):
        _asked(subject, one, other)


def _deterministic(subject: _Subject, a: _State, b: _State, c: _State) -> None:
    once = _asked(subject, a, b)
    again = _asked(subject, a._replace(found=_turned(a.record)), b)
    if not _look_alike(once, again):
        lines = [f"resolver({a.owner}, {b.owner}) = {_shown(once)}"]
        lines += [f"and the same once more = {_shown(again)}"]
        raise _broken("deterministic", (a, b), lines)


def _idempotent(subject: _Subject, a: _State, b: _State, c: _State) -> None:
    made = _asked(subject, a, a)
    if not _look_alike(made, a.record):
        raise _broken("idempotent", (a,), [f"resolver({a.owner}, {a.owner}) = {_shown(made)}"])


def _commutative(subject: _Subject, a: _State, b: _State, c: _State) -> None:
    one, other = _asked(subject, a, b), _asked(subject, b, a)
    if not _look_alike(one, other):
        lines = [
            f"resolver({a.owner}, {b.owner}) = {_shown(one)}",
            f"resolver({b.owner}, {a.owner}) = {_shown(other)}",
        ]
        raise _broken("commutative", (a, b), lines)


def _associative(subject: _Subject, a: _State, b: _State, c: _State) -> None:
    left = _asked(subject, _joined(subject, a, b), c)
    right = _asked(subject, a, _joined(subject, b, c))
    if not _look_alike(left, right):
        lines = [
            f"resolver(resolver({a.owner}, {b.owner}), {c.owner}) = {_shown(left)}",
            f"resolver({a.owner}, resolver({b.owner}, {c.owner})) = {_shown(right)}",
        ]
        raise _broken("associative", (a, b, c), lines)


def _joined(subject: _Subject, a: _State, b: _State) -> _State:
    """What the resolver makes of two states, as a state to go on with."""
    story = (*a.story, *(line for line in b.story if line not in a.story))
    return _State(f"resolver({a.owner}, {b.owner})", _asked(subject, a, b), story)


def _asked(subject: _Subject, a: _State, b: _State) -> Record:
    """What the resolver makes of them; whatever it does but return a state breaks a law."""
    try:
        return subject(a.record, b.record)
    except _Failed as failed:
        line = f"resolver({a.owner}, {b.owner}) {failed}"
        raise _broken(failed.law, (a, b), [line]) from failed


def _look_alike(a: Record, b: Record) -> bool:
    return same(a.visible, b.visible)


def _copy(record: Record) -> Record:
    """An equal record that shares no map or list with it."""
    return record._replace(
        fields=copy_fields(record.fields), stamps=dict(record.stamps), vector=dict(record.vector)
    )


def _turned(record: Record) -> Record:
    """An equal record, its fields in another order: they have none."""
    return record._replace(fields=dict(reversed(record.fields.items())))


_LAWS: Mapping[str, Law] = {
    "total": _total,
    "deterministic": _deterministic,
    "idempotent": _idempotent,
    "commutative": _commutative,
    "associative": _associative,
}


# The states.

_FIELDS = st.dictionaries(
    st.sampled_from("abc"),
    st.integers(-2, 2) | st.sampled_from(("", "x", "yy", None, True, [])) | st.lists(st.just("z")),
    max_size=3,
)
"""Any fields, kept small: what matters is which are there and which are equal."""


def _draw_states(
    draw: Draw, fields: st.SearchStrategy[dict[str, Value]], subject: _Subject
) -> tuple[_State, _State, _State]:
    """Three states of one record, each that of a device which wrote and heard of others."""
    pool = st.sampled_from(_draw_pool(draw, fields, subject.model))
    states: dict[str, _State] = {}
    numbers = dict.fromkeys(DEVICES, 0)
    at_base = draw(st.booleans())
    for name in DEVICES:
        if at_base and name != DEVICES[0]:
            states[name] = states[DEVICES[0]]._replace(owner=name)
        else:
            states[name] = _written(draw, pool, _State(name, None, ()), "put", numbers)
    for _ in range(draw(st.integers(0, ACTIONS_MAX))):
        name = draw(st.sampled_from(DEVICES))
        kind = draw(st.sampled_from(("put", "patch", "delete", "hear")))
        if kind != "hear":
            states[name] = _written(draw, pool, states[name], kind, numbers)
            continue
        other = draw(st.sampled_from([one for one in DEVICES if one != name]))
        states[name] = _heard(subject, states[name], states[other])
    return states[DEVICES[0]], states[DEVICES[1]], states[DEVICES[2]]


def _draw_pool(
    draw: Draw, fields: st.SearchStrategy[dict[str, Value]], model: type[BaseModel] | None
) -> list[dict[str, Value]]:
    """Few records that are equal in part: so equal values meet, and a story shrinks fast."""
    first, *others = draw(st.lists(fields, min_size=1, max_size=len(DEVICES)))
    pool = [first]
    for drawn in others:
        mixed = {
            name: first.get(name, drawn[name]) if draw(st.booleans()) else drawn[name]
            for name in drawn
        }
        pool.append(mixed if model is None or _is_one(model, mixed) else drawn)
    return pool


def _is_one(model: type[BaseModel], fields: dict[str, Value]) -> bool:
    try:
        model.model_validate(fields)
    except ValidationError:
        return False
    return True


def _written(
    draw: Draw,
    fields: st.SearchStrategy[dict[str, Value]],
    state: _State,
    kind: str,
    numbers: dict[str, int],
) -> _State:
    """The state after a write of its owner; a patch of what is deleted is a put."""
    name, before = state.owner, state.found
    vector = {} if before is None else before.vector
    drawn = draw(fields) if kind != "delete" else {}
    at = draw(st.integers(1, TICKS_MAX))
    if before is not None:
        at = max(at, before.life.updated_at + 1)
    change: RecordChange
    if kind == "delete":
        change, what = Delete("records", "r", vector), "deletes it"
    elif kind == "patch" and before is not None and before.alive:
        drawn = {key: value for key, value in drawn.items() if draw(st.booleans())}
        change, what = Patch("records", "r", vector, drawn), f"patches {_short(drawn)}"
    else:
        change, what = Put("records", "r", vector, drawn), f"puts {_short(drawn)}"
    numbers[name] += 1
    record = fold(before, change, Stamp(at, name, numbers[name]), None)
    return _State(name, record, (*state.story, f"{name} {what} at {at}"))


def _heard(subject: _Subject, mine: _State, other: _State) -> _State:
    joined = _joined(subject, mine, other)
    heard = f"{mine.owner} hears of {other.owner}"
    return _State(mine.owner, joined.found, (*joined.story, heard))


# The story.


def _broken(law: str, states: tuple[_State, ...], lines: list[str]) -> WrongResolver:
    distinct = tuple({state.owner: state for state in states}.values())
    happened = dict.fromkeys(line for state in distinct for line in state.story)
    holds = [f"{state.owner} holds {_shown(state.record)}" for state in distinct]
    return WrongResolver(law, "\n".join([*happened, *holds, *lines]))


def _shown(record: Record) -> str:
    return "a deleted record" if record.visible is None else _short(record.visible)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= STORY_CHARS_MAX else text[: STORY_CHARS_MAX - 3] + "..."
