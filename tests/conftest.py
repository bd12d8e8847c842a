"""How the suite runs: on the cores that are there, on files in memory, with the same examples.

The whole suite (``pytest``, no paths) is spread over two to four processes; a folder, a file or a
test runs in the one that was started, and so does ``pytest -n 0``. Hypothesis has two profiles:
``fast`` is the default, ``thorough`` is for a long look.

    pytest tests/sync --hypothesis-profile=thorough

No example has a deadline: a busy machine is no failure.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

PROCESSES_MAX = 4
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 2 << 30

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

# The same examples every time, so that a red run is about the change and not about luck.
settings.register_profile(
    "fast", max_examples=50, deadline=None, derandomize=True, suppress_health_check=_QUIET
)
settings.register_profile(
    "thorough", max_examples=200_000, deadline=None, print_blob=True, suppress_health_check=_QUIET
)
settings.load_profile("fast")

# Files in memory, where there is such a place with room: durable is what was handed to the system,
# which outlives any process that a test kills, and no test waits for a disk.
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# Whoever is started in the background of a shell ignores interrupts, and so would its children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The whole suite on all cores, unless somebody said otherwise or wants to look closely."""
    option = config.option
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    close = option.collectonly or option.usepdb or option.trace or option.capture == "no"
    # A worker of pytest-xdist reads the same configuration, and must not start workers of its own.
    within = hasattr(config, "workerinput") or "PYTEST_XDIST_WORKER" in os.environ
    if whole and not close and not within and getattr(option, "numprocesses", 0) is None:
        option.numprocesses = max(2, min(PROCESSES_MAX, os.cpu_count() or 1))
        option.dist = "worksteal"
