"""docs/requirements.md is complete and true: every line has its tests, every number its line."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SECTIONS = {1: 12, 2: 12, 3: 12}
"""How many lines each section has."""
LATER = {"3.10"}
"""Lines of which nothing is there yet."""


class Line(NamedTuple):
    number: str
    what: str
    where: list[str]
    tests: list[str]


def lines() -> list[Line]:
    page = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+\.\d+) \| (.*?) \|(.*)\|(.*)\|$", page, re.MULTILINE)
    return [
        Line(number, what, re.findall(r"`(.+?)`", where), re.findall(r"`(.+?)`", tests))
        for number, what, where, tests in rows
    ]


def pinned() -> dict[str, set[str]]:
    """By the number of a line, the files with a test that names it."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in (ROOT / "tests").rglob("*.py"):
        for name in re.findall(r"\bdef (test_\w+)", path.read_text(encoding="utf-8")):
            for section, line in re.findall(r"(?<=_)R(\d+)_(\d+)(?=_)", name):
                found[f"{section}.{line}"].add(path.relative_to(ROOT).as_posix())
    return found


def test_every_line_is_there_once_and_in_order() -> None:
    wanted = [f"{section}.{n}" for section, last in SECTIONS.items() for n in range(1, last + 1)]
    assert [line.number for line in lines()] == wanted


def test_every_line_is_pinned_by_a_test_in_each_file_that_it_names() -> None:
    tests = pinned()
    missing = [
        f"{line.number}: no test of {file} has it in its name"
        for line in lines()
        for file in line.tests
        if file not in tests[line.number]
    ]
    assert missing == []
    assert {line.number for line in lines() if not line.tests} == LATER


def test_every_number_in_a_tests_name_has_its_line() -> None:
    assert sorted(set(pinned()) - {line.number for line in lines()}) == []


def test_every_file_that_the_page_names_is_there() -> None:
    roots = sorted(ROOT.glob("*/syncline"))
    assert len(roots) == 4
    for line in lines():
        assert bool(line.where) is (line.number not in LATER)
        for file in line.where:
            assert any((root / file).is_file() for root in roots), f"{line.number}: {file}"
