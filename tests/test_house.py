"""House rules that are a test and not a wish. (The import contracts run in lint-imports.)

``docs/protocol.md`` numbers what both ends promise; a test that proves a rule has the rule's id in
its name, ``test_ST3_the_larger_stamp_wins``. Both ways are checked here: no rule without a test,
no id that is no rule.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = ("client", "server", "sync", "tools")
FILE_LINES_MAX = 600
TEST_FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 120

PENDING: frozenset[str] = frozenset()
"""Rules of the protocol that no test proves yet. It shrinks, and is empty in the end."""


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), shown(path))


EACH_PRODUCT_FILE = pytest.mark.parametrize("path", sources(*PRODUCT), ids=shown)
STANDARD = ("__future__", "importlib", "typing")
PACKAGES = [path for path in sources(*PRODUCT) if path.name == "__init__.py"]


def test_no_file_is_longer_than_anyone_reads() -> None:
    bounds = {**dict.fromkeys(PRODUCT, FILE_LINES_MAX), "tests": TEST_FILE_LINES_MAX}
    long = [
        f"{shown(path)}: {lines} lines"
        for folder, lines_max in bounds.items()
        for path in sources(folder)
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) >= lines_max
    ]
    assert long == []


def test_no_function_is_longer_than_anyone_reads() -> None:
    long = [
        f"{shown(path)}:{node.lineno} {node.name}"
        for path in sources(*PRODUCT)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert long == []


@EACH_PRODUCT_FILE
def test_every_module_begins_with_its_theory_of_operation(path: Path) -> None:
    assert ast.get_docstring(tree(path)), f"{shown(path)} has no docstring"


@EACH_PRODUCT_FILE
def test_product_code_waits_for_events_and_never_sleeps(path: Path) -> None:
    slept = [
        f"{shown(path)}:{node.lineno}"
        for node in ast.walk(tree(path))
        if (isinstance(node, ast.Attribute) and node.attr == "sleep")
        or (isinstance(node, ast.ImportFrom) and any(a.name == "sleep" for a in node.names))
    ]
    assert slept == []


@EACH_PRODUCT_FILE
def test_no_folder_reaches_into_anothers_private_modules(path: Path) -> None:
    """But for the testing kit, which drives the engines themselves in virtual time."""
    own = path.relative_to(ROOT).parts[2]
    if own == "testing":
        return
    reached = [
        f"{shown(path)}:{node.lineno} {node.module}"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom)
        and node.level == 0
        and (parts := (node.module or "").split("."))[0] == "syncline"
        and parts[1:2] != [own]
        and any(part.startswith("_") for part in parts)
    ]
    assert reached == []


@pytest.mark.parametrize("path", PACKAGES, ids=shown)
def test_a_package_lists_its_public_names_sorted_and_complete(path: Path) -> None:
    bound: list[str] = []
    listed: list[str] | None = None
    body = tree(path).body
    # A package whose names are imported when first used shows them to type checkers only.
    body += [inner for node in body if isinstance(node, ast.If) for inner in node.body]
    for node in body:
        match node:
            case ast.ImportFrom(module=str(module)) if module not in STANDARD:
                bound += [alias.asname or alias.name for alias in node.names]
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.append(name)
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                listed = ast.literal_eval(value)
    public = sorted(name for name in bound if not name.startswith("_"))
    assert listed is not None or public == [], f"{shown(path)} has no __all__"
    assert (listed or []) == public


# The protocol's rules.


def _rules() -> Counter[str]:
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    return Counter(re.findall(r"^- \*\*([A-Z]{2}\d+)\*\* ", page, re.MULTILINE))


def _proofs() -> Iterator[tuple[str, str]]:
    """(rule, test) for each rule id in the name of a test."""
    for path in sources("tests"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name.startswith("test_"):
                    for rule in re.findall(r"(?<=_)[A-Z]{2}\d+(?=_)", node.name):
                        yield rule, f"{shown(path)}::{node.name}"


def test_every_rule_of_the_protocol_stands_there_once() -> None:
    assert {rule for rule, count in _rules().items() if count > 1} == set()


def test_every_rule_of_the_protocol_has_a_test_that_names_it() -> None:
    tested = {rule for rule, _ in _proofs()}
    assert sorted(set(_rules()) - tested - PENDING) == []


def test_every_rule_that_a_test_names_is_in_the_protocol() -> None:
    assert [test for rule, test in _proofs() if rule not in _rules()] == []


def test_no_rule_is_pending_that_is_tested_or_not_there() -> None:
    """Take a rule out of PENDING when its test lands."""
    tested = {rule for rule, _ in _proofs()}
    assert sorted(PENDING & tested) == []
    assert sorted(PENDING - set(_rules())) == []
