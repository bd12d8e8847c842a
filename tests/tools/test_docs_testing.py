"""The page about testing is true: its examples run, in a folder of their own, as a user's would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize(("name", "tests"), [("test_recipes.py", 5), ("test_store.py", 60)])
def test_an_example_of_the_page_passes_as_it_stands(tmp_path: Path, name: str, tests: int) -> None:
    (tmp_path / name).write_text(EXAMPLES[name], encoding="utf-8")
    done = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", name)
    assert done.returncode == 0, done.stdout
    (passed,) = re.findall(r"^(\d+) passed in", done.stdout, re.MULTILINE)
    assert int(passed) >= tests


def test_the_wrong_resolver_of_the_page_is_refused_by_a_story_like_the_one_there(
    tmp_path: Path,
) -> None:
    (tmp_path / "wrong.py").write_text(EXAMPLES["wrong.py"], encoding="utf-8")
    done = run(tmp_path, "wrong.py")
    assert done.returncode == 1
    (told,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    first, *story = told.splitlines()
    assert f"WrongResolver: {first}\n" in done.stderr
    # Another version of Hypothesis may find another story, as short and of the same form.
    *_, left, right = done.stderr.splitlines()
    forms = [line.split("=")[0] for line in (left, right)]
    assert forms == [line.split("=")[0] for line in story[-2:]]


def test_every_public_name_of_the_kit_that_the_page_needs_is_on_it() -> None:
    from syncline.testing import strategies

    missing = [name for name in strategies.__all__ if name[0].islower() and name not in PAGE]
    assert missing == []
