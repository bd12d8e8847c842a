"""This machine's ids and clock, for what is pure to be given."""

from __future__ import annotations

import time

import uuid_utils


def new_session_id() -> str:
    """A UUIDv7."""
    return str(uuid_utils.uuid7())


def new_message_id() -> str:
    """A UUIDv7."""
    return str(uuid_utils.uuid7())


def wall_clock() -> int:
    """Microseconds since the Unix epoch."""
    return time.time_ns() // 1000
