"""``check_resolver``: it passes what is right, and refuses each wrong resolver by the right law."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from syncline.sync import LIFE, Record, Resolution, resolve_conflicts
from syncline.testing import WrongResolver, check_resolver


class Note(BaseModel):
    text: str
    score: int = Field(ge=0, le=9)


def longest(a: Record, b: Record) -> Record:
    """The longest text wins, else the first."""
    return a if len(a.fields["text"]) >= len(b.fields["text"]) else b


def average(a: Record, b: Record) -> Record:
    """The scores meet in the middle; for the rest the newer."""
    newer = max(a, b, key=lambda record: record.life)
    return newer._replace(fields={**newer.fields, "score": _middle(a, b)})


def _middle(a: Record, b: Record) -> int:
    first, second = a.fields["score"], b.fields["score"]
    assert isinstance(first, int) and isinstance(second, int)
    return (first + second) // 2


def appended(a: Record, b: Record) -> Record:
    """Both texts, in the order of their stamps."""
    older, newer = sorted((a, b), key=lambda record: record.life)
    text = older.fields["text"] + newer.fields["text"]
    return newer._replace(fields={**newer.fields, "text": text})


def newest_alive(a: Record, b: Record) -> Record:
    """The newest that is alive; nobody thought of two deletions."""
    return max((one for one in (a, b) if one.alive), key=lambda record: record.life)


def by_turns() -> Callable[[Record, Record], Record]:
    turn = count()
    return lambda a, b: (a, b)[next(turn) % 2]


def by_chance() -> Callable[[Record, Record], Record]:
    chance = random.Random(7)
    return lambda a, b: chance.choice((a, b))


def in_place(a: Record, b: Record) -> Record:
    """The newer one, with the older one's fields filled in: into the argument itself."""
    older, newer = sorted((a, b), key=lambda record: record.life)
    newer.fields.update({k: v for k, v in older.fields.items() if k not in newer.fields})
    newer.fields["text"] = max(older.fields["text"], newer.fields["text"])
    return newer


@pytest.mark.parametrize("model", [None, Note], ids=["any fields", "a model"])
def test_the_resolver_of_the_house_keeps_all_laws(model: type[BaseModel] | None) -> None:
    check_resolver(resolve_conflicts, model)


def test_a_right_resolver_of_ones_own_keeps_all_laws() -> None:
    check_resolver(lambda a, b: max(a, b, key=lambda record: (record.life, record.alive)), Note)


@pytest.mark.parametrize(
    ("resolver", "law"),
    [
        (longest, "commutative"),
        (average, "associative"),
        (appended, "idempotent"),
        (newest_alive, "total"),
        (by_turns(), "deterministic"),
        (by_chance(), "deterministic"),
        (in_place, "deterministic"),
    ],
    ids=["longest", "average", "appended", "newest alive", "by turns", "by chance", "in place"],
)
def test_a_wrong_resolver_is_refused_by_the_law_that_it_breaks(
    resolver: Callable[[Record, Record], Record], law: str
) -> None:
    with pytest.raises(WrongResolver) as refused:
        check_resolver(resolver, Note)
    assert refused.value.law == law


def test_the_counterexample_is_a_short_story() -> None:
    with pytest.raises(WrongResolver) as refused:
        check_resolver(longest, Note)
    law, *happened, ann, bob, left, right = str(refused.value).splitlines()
    assert law == "the resolver is not commutative"
    assert 2 <= len(happened) <= 4
    assert all(re.match(r"  (ann|bob) (puts|patches|deletes) ", line) for line in happened)
    assert (ann[:12], bob[:12]) == ("  ann holds ", "  bob holds ")
    assert left.startswith("  resolver(ann, bob) = ") and right.startswith(
        "  resolver(bob, ann) = "
    )
    assert left.split(" = ")[1] == ann[12:]
    assert right.split(" = ")[1] == bob[12:]


def test_a_state_that_the_model_would_not_take_is_no_state() -> None:
    def added(a: Record, b: Record) -> Record:
        if a == b:
            return a
        total = a.fields["score"] + b.fields["score"]
        return a._replace(fields={**a.fields, "score": total})

    with pytest.raises(WrongResolver) as refused:
        check_resolver(added, Note)
    assert refused.value.law == "total"
    assert "which is no Note: score: Input should be less than or equal to 9" in str(refused.value)


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (lambda a, b: None, "returns None, which is no Record"),
        (lambda a, b: a.fields, "which is no Record"),
        (
            lambda a, b: a._replace(fields={"text": ("a", "tuple")}),
            "returns what no field may hold",
        ),
        (lambda a, b: a.fields["missing"], "raises KeyError: 'missing'"),
    ],
    ids=["nothing", "fields", "a tuple", "an exception"],
)
def test_what_returns_no_state_is_not_total(
    returned: Callable[[Record, Record], Record], told: str
) -> None:
    with pytest.raises(WrongResolver) as refused:
        check_resolver(returned, Note, examples=20)
    assert refused.value.law == "total"
    assert told in str(refused.value)


def test_the_states_are_such_as_happen() -> None:
    """Conflicts of fields and of life, records seen and unseen, all come about."""
    seen: set[str] = set()

    def watched(a: Record, b: Record) -> Resolution:
        made = resolve_conflicts(a, b)
        seen.add("concurrent" if made.concurrent else "seen")
        seen.update("life" if lost.field == LIFE else "field" for lost in made.lost)
        seen.update("equal times" for lost in made.lost if lost.loser[0] == lost.winner[0])
        if not (a.alive or b.alive):
            seen.add("both deleted")
        if len({stamp.client for stamp in a.stamps.values()}) > 1:
            seen.add("fields of several writers")
        return made

    check_resolver(watched, st.builds(Note, text=st.sampled_from("ab"), score=st.just(1)))
    assert seen == {
        "both deleted",
        "concurrent",
        "equal times",
        "field",
        "fields of several writers",
        "life",
        "seen",
    }
