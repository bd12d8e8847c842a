"""A server with a rule of its own: it takes no record that has a field ``bad``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from syncline.server._settling import SessionWork
from syncline.sync import Change, Op, Patch, Put


def reject(monkeypatch: pytest.MonkeyPatch, raising: Exception) -> list[float]:
    """Let the server raise this for every write of a field ``bad``; when it did, is listed."""
    accept = SessionWork._accept
    tried: list[float] = []

    def checked(
        self: SessionWork, author: Any, op: Op, changes: Sequence[Change] | Exception | None
    ) -> None:
        if isinstance(changes, list) and any(
            isinstance(change, Put | Patch) and "bad" in change.fields for change in changes
        ):
            tried.append(time.monotonic())
            raise raising
        accept(self, author, op, changes)

    monkeypatch.setattr(SessionWork, "_accept", checked)
    return tried
