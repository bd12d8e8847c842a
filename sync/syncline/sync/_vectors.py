"""Version vectors: which ops of which client somebody has seen.

A vector maps a client to the number of its last op seen; a client that is not named was not seen
at all. Vectors are plain dicts that are never changed in place. The order is the usual partial one
(D. S. Parker et al., "Detection of Mutual Inconsistency in Distributed Systems", 1983).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ._errors import InvalidValue
from ._names import check_id

VersionVector = Mapping[str, int]
"""``{client: n}`` with n from 1 to 2**63 - 1."""

VECTOR_CLIENTS_MAX = 4096
NUMBER_MAX = 2**63 - 1


class Order(Enum):
    """How two vectors stand to each other."""

    EQUAL = "equal"
    BEFORE = "before"
    AFTER = "after"
    CONCURRENT = "concurrent"


def covers(vector: VersionVector, other: VersionVector) -> bool:
    """Whether ``vector`` has seen all that ``other`` has (``vector >= other``)."""
    for client, n in other.items():
        if vector.get(client, 0) < n:
            return False
    return True


def compare(a: VersionVector, b: VersionVector) -> Order:
    """How ``a`` stands to ``b``.

    >>> compare({"a": 2}, {"a": 1})
    <Order.AFTER: 'after'>
    >>> compare({"a": 1}, {"b": 1})
    <Order.CONCURRENT: 'concurrent'>
    """
    ahead, behind = covers(a, b), covers(b, a)
    if ahead:
        return Order.EQUAL if behind else Order.AFTER
    return Order.BEFORE if behind else Order.CONCURRENT


def merge(a: VersionVector, b: VersionVector) -> dict[str, int]:
    """The join: the least vector that has seen all that either has."""
    joined = dict(a)
    for client, n in b.items():
        if n > joined.get(client, 0):
            joined[client] = n
    return joined


def increment(vector: VersionVector, client: str) -> dict[str, int]:
    """``vector`` with one more op of ``client``."""
    return {**vector, client: vector.get(client, 0) + 1}


def clip(vector: VersionVector, held: VersionVector) -> dict[str, int]:
    """The part of ``vector`` that ``held`` has seen too (their meet)."""
    clipped = {}
    for client, n in vector.items():
        known = held.get(client, 0)
        if known:
            clipped[client] = n if n <= known else known
    return clipped


def validate(value: object) -> dict[str, int]:
    """``value`` as a vector. Raises InvalidValue (3019) naming the entry at fault."""
    if not isinstance(value, dict):
        raise InvalidValue(f"a version vector must be a map, not {type(value).__name__}")
    if len(value) > VECTOR_CLIENTS_MAX:
        raise InvalidValue(f"a version vector names at most {VECTOR_CLIENTS_MAX} clients")
    for client, n in value.items():
        check_id(client, "client id in a version vector")
        if type(n) is not int or not 1 <= n <= NUMBER_MAX:
            raise InvalidValue(f"the number of {client} in a version vector must be 1 to 2**63-1")
    return value


_TEXT: frozenset[type] = frozenset({str})
_INTEGER: frozenset[type] = frozenset({int})


def is_vector(value: object) -> bool:
    """Whether ``value`` has the form of a vector; for those that were validated when written."""
    return (
        type(value) is dict
        and _TEXT.issuperset(map(type, value))
        and _INTEGER.issuperset(map(type, value.values()))
    )


def serialise(vector: VersionVector) -> dict[str, int]:
    """The canonical form: clients in the order of their names."""
    return dict(sorted(vector.items())) if len(vector) > 1 else dict(vector)
