"""Generated values, vectors, stamps and records, as a client may make them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from syncline.sync import INT_MAX, INT_MIN, Record, Stamp, VersionVector

# Surrogates are no Unicode text, whatever a Python string can hold.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(INT_MIN, INT_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | st.binary(max_size=12)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
NAMES = st.text(
    st.characters(exclude_categories=["Cs"], min_codepoint=0x25, exclude_characters="\x7f"),
    min_size=1,
    max_size=8,
)
FIELDS = st.dictionaries(NAMES, VALUES, max_size=4)

CLIENT_IDS = st.sampled_from(["ann", "bob", "cyd", "dee"])
VECTORS: st.SearchStrategy[VersionVector] = st.dictionaries(
    CLIENT_IDS, st.integers(1, 2**63 - 1) | st.integers(1, 3), max_size=4
)
STAMPS = st.builds(Stamp, st.integers(0, 2**63 - 1), CLIENT_IDS, st.integers(1, 2**63 - 1))


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Any record whose parts fit together, reachable or not."""
    life = draw(STAMPS)
    stamps = st.just(life) | STAMPS
    fields: dict[str, Any] = draw(FIELDS)
    return Record(
        fields,
        {name: draw(stamps) for name in fields},
        draw(st.none() | stamps),
        draw(st.booleans()),
        life,
        draw(VECTORS),
    )


def swapped(row: list[Any], place: int, *parts: Any) -> list[list[Any]]:
    """Copies of a row, each with one of these parts at that place: rows of a wrong shape."""
    return [[*row[:place], part, *row[place + 1 :]] for part in parts]
