"""Containment: which metadata a filter lets through (REQ 3.11).

A map contains a filter when every key of the filter is there with a value that contains the
filter's. A list contains another, as sets do, when each of its items is contained in some item.
Anything else must be equal: numbers by their value, and a bool is no number. Matching begins at the
top: a filter is never looked for further down. An empty map or list is contained in every one.
"""

from __future__ import annotations

from .._values import Value


def contains(value: Value, wanted: Value) -> bool:
    """Whether ``value`` contains ``wanted``. Values are those of a record, at most 64 deep."""
    if isinstance(wanted, dict):
        return isinstance(value, dict) and all(
            key in value and contains(value[key], item) for key, item in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(value, list) and _all_in(value, wanted)
    return _kind(value) is _kind(wanted) and bool(value == wanted)


def _all_in(value: list[Value], wanted: list[Value]) -> bool:
    # Plain items are looked up, so that two long lists cost no product of their lengths.
    plain = {(_kind(item), item) for item in value if not isinstance(item, dict | list)}
    nested = [item for item in value if isinstance(item, dict | list)]
    return all(
        any(contains(item, one) for item in nested)
        if isinstance(one, dict | list)
        else (_kind(one), one) in plain
        for one in wanted
    )


def _kind(value: Value) -> type:
    """Of what kind a plain value is: whole and broken numbers are one."""
    return float if type(value) is int else type(value)
