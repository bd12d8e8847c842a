"""Teeth: faults planted on purpose, to see that the simulator and the suite bite.

Each fault is one line of the product changed in a copy of the tree, which two layers then look at,
the faster first, up to the first catch: worlds of the simulator, and the tests beside the changed
code. Mostly the worlds are faster; a fault that other checks stand behind (a copy is noticed in
three places) shows only to a test that speaks to that line. What survives both layers is a hole.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

from syncline.sync import LocalError

SOURCES = ("client", "server", "sync", "tools")
COPIED = (*SOURCES, "tests", "docs", "pyproject.toml", "README.md")
Layer = Literal["simulator", "suite"]
LAYER_S_MAX = 7200.0
"""A layer that takes longer says nothing. What hangs is noticed sooner, world by world and test by
test, so that a busy machine alone makes no catch."""


@dataclass(frozen=True, slots=True)
class Planted:
    """One fault: where ``old`` (which occurs there once) becomes ``new``, and what that breaks.

    ``first`` is the layer that is asked first, ``tests`` are those of the suite (else the ones
    beside the file), and ``survives`` says why nobody notices.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    first: Layer = "simulator"
    tests: str = ""
    survives: str = ""

    @property
    def suite(self) -> str:
        """The tests beside the changed code."""
        return self.tests or "tests/" + self.file.split("/", 1)[0]


@dataclass(frozen=True, slots=True)
class Bite:
    """What became of a planted fault. ``layer`` None: nothing saw it. ``seeds`` were played.

    ``unasked`` says why a layer gave no answer (it was killed, as by a machine without memory):
    without a catch by the other one, nobody knows whether the fault is noticed.
    """

    fault: Planted
    layer: Layer | None
    seeds: int
    how: str
    unasked: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.fault.name,
            "file": self.fault.file,
            "caught_by": self.layer,
            "seeds": self.seeds,
            "how": self.how,
            "unasked": self.unasked,
        }


def planted_faults() -> tuple[Planted, ...]:
    """The list, in its order."""
    with open(Path(__file__).with_name("planted.toml"), "rb") as file:
        return tuple(Planted(**row) for row in tomllib.load(file)["fault"])


def checkout() -> Path:
    """The root of the source tree that this module runs from. Raises LocalError (3100)."""
    root = Path(__file__).resolve().parents[3]
    if not all((root / name).exists() for name in COPIED):
        raise LocalError(f"planting faults works from a checkout of the sources; {root} is none")
    return root


def planted(text: str, fault: Planted) -> str:
    """The text of the file with the fault in it. Raises LocalError (3100) when it does not fit."""
    count = text.count(fault.old)
    if count != 1:
        raise LocalError(
            f"the planted fault {fault.name} does not fit: its `old` occurs {count} times in"
            f" {fault.file}, and has to occur once. The code there has changed: in"
            " tools/syncline/testing/planted.toml, write its `old` and `new` as the line is now"
            f" (then: syncline teeth --only {fault.name}), or take the fault out, with its row in"
            " docs/teeth.md, when the line is gone for good"
        )
    return text.replace(fault.old, fault.new)


def bite(
    faults: Iterable[Planted],
    seeds: int,
    *,
    processes: int | None = None,
    progress: Callable[[Bite], None] = lambda bite: None,
) -> list[Bite]:
    """Plant each fault by itself and look who notices it, some at a time."""
    with _copies(processes or os.cpu_count() or 1) as copies:

        def one(fault: Planted) -> Bite:
            copy = copies.get()
            try:
                found = _bite(copy, fault, seeds)
            finally:
                copies.put(copy)
            progress(found)
            return found

        with ThreadPoolExecutor(copies.qsize()) as pool:
            return list(pool.map(one, faults))


@contextmanager
def _copies(count: int) -> Iterator[SimpleQueue[Path]]:
    """Copies of the checkout, each for one fault at a time."""
    root = checkout()
    with tempfile.TemporaryDirectory(prefix="syncline-teeth-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for place in range(count):
            copy = Path(folder, str(place))
            copy.mkdir()
            for name in COPIED:
                if (root / name).is_dir():
                    shutil.copytree(
                        root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__")
                    )
                else:
                    shutil.copy2(root / name, copy / name)
            copies.put(copy)
        yield copies


def _bite(copy: Path, fault: Planted, seeds: int) -> Bite:
    file = copy / fault.file
    sound = file.read_text(encoding="utf-8")
    text = planted(sound, fault)
    # What is no Python would be noticed by everybody, and prove nothing. (Not ``ast.parse``: in
    # Python 3.11 several threads that build syntax trees trip over each other, gh-106905.)
    compile(text, str(file), "exec", dont_inherit=True)
    file.write_text(text, encoding="utf-8")
    try:
        played, unasked = 0, ""
        layers: tuple[Layer, ...] = ("simulator", "suite")
        for layer in layers if fault.first == "simulator" else reversed(layers):
            try:
                if layer == "suite":
                    how = _suite(copy, fault.suite)
                else:
                    played, how = _simulator(copy, seeds)
            except _NoAnswer as none:
                unasked = f"{layer}: {none}"
                continue
            if how is not None:
                return Bite(fault, layer, played, how, unasked)
        return Bite(fault, None, played, "", unasked)
    finally:
        file.write_text(sound, encoding="utf-8")


def _simulator(copy: Path, seeds: int) -> tuple[int, str | None]:
    """The seeds played, and the promise that the last of them broke, if it did."""
    code, out = _python(copy, "-m", "syncline.testing._hunt", str(seeds))
    if "Timeout (" in out:
        return 0, "live: it hangs"  # So faulthandler says it.
    if code != 0:
        return 0, "sound: " + (out.strip().splitlines() or ["it does not start"])[-1]
    found = json.loads(out.splitlines()[-1])
    promise, story = found["promise"], found["story"]
    return found["seeds"], None if promise is None else f"{promise}: {story}"


def _suite(copy: Path, tests: str) -> str | None:
    """The first test that fails; None when all pass."""
    options = ("-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider")
    code, out = _python(copy, "-m", "pytest", *options, *tests.split())
    if code == 0:
        return None
    failed = [line for line in out.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else (out.strip().splitlines() or ["pytest fails"])[-1]


class _NoAnswer(Exception):
    """A layer was killed or took too long: it has neither caught the fault nor let it pass."""


def _python(copy: Path, *args: str) -> tuple[int, str]:
    """Run Python on the copy: its exit code and what it said."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(copy / name) for name in SOURCES),
        # Two texts of a file within one second and of one length would share their bytecode.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        done = subprocess.run(
            [sys.executable, *args],
            cwd=copy,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LAYER_S_MAX,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        raise _NoAnswer(f"took longer than {LAYER_S_MAX:.0f} s") from error
    if done.returncode < 0:
        raise _NoAnswer(f"killed by {signal.Signals(-done.returncode).name}")
    return done.returncode, done.stdout
