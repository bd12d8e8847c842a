"""Values given on the command line: ``FIELD=VALUE`` and JSON objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click


def read_fields(pairs: Sequence[str], as_json: str | None = None) -> dict[str, Any]:
    """The fields of ``FIELD=VALUE`` words, or of a JSON object.

    A value that is JSON is taken as such, any other as text: ``n=1`` is a number, ``n='"1"'`` text.
    """
    if as_json is not None:
        if pairs:
            raise click.UsageError("Give FIELD=VALUE or --json-fields, not both.")
        return _read_object(as_json)
    fields: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise click.UsageError(f"'{pair}' is not FIELD=VALUE.")
        if name in fields:
            raise click.UsageError(f"The field '{name}' is given twice.")
        fields[name] = _read_value(text)
    return fields


def _read_object(text: str) -> dict[str, Any]:
    try:
        fields = _load(text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--json-fields is not JSON: {error}.") from error
    if not isinstance(fields, dict):
        raise click.UsageError("--json-fields must be a JSON object.")
    return fields


def _read_value(text: str) -> Any:
    try:
        return _load(text)
    except (ValueError, RecursionError):
        return text


def _load(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)


def _object(pairs: list[tuple[str, Any]]) -> Any:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("an object names a key twice")
    if list(made) == ["$bytes"] and isinstance(made["$bytes"], str):
        return bytes.fromhex(made["$bytes"])
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
