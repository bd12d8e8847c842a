"""What the extra ``syncline[testing]`` brings, asked for only where it is used.

The simulator and the link need nothing of it. Whatever does says so in one sentence when it is
missing, instead of failing on the name of a library that the user never heard of.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

PARTS = ("hypothesis", "pytest")


@contextmanager
def needs_extra(what: str) -> Iterator[None]:
    """Around the imports of the extra's libraries. Raises ModuleNotFoundError naming the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in PARTS:
            raise
        raise ModuleNotFoundError(
            f"{what} needs {error.name}, which is in an extra: pip install 'syncline[testing]'",
            name=error.name,
        ) from error
