"""Which SQLite libraries have the WAL-reset fault (case C047)."""

from __future__ import annotations

import pytest

from syncline.sync import wal_reset_fault


@pytest.mark.parametrize(
    "version",
    [(3, 7, 0), (3, 40, 1), (3, 44, 5), (3, 45, 0), (3, 50, 0), (3, 50, 6), (3, 51, 0), (3, 51, 2)],
)
def test_libraries_from_3_7_0_to_3_51_2_have_the_fault(version: tuple[int, ...]) -> None:
    assert wal_reset_fault(version)


@pytest.mark.parametrize(
    "version",
    [(3, 6, 23), (3, 44, 6), (3, 44, 9), (3, 50, 7), (3, 51, 3), (3, 52, 0), (4, 0, 0)],
)
def test_older_libraries_and_those_with_the_fix_do_not_have_it(version: tuple[int, ...]) -> None:
    assert not wal_reset_fault(version)
