"""The hunt for one planted fault: worlds one after the other, up to the first that breaks.

Runs in a process of its own, on a copy of the tree in which the fault was planted:
``python -m syncline.testing._hunt SEEDS`` prints one JSON line. The worlds are mixed as a campaign
would mix them, with those in between that force what is rare.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import sys
from typing import Any

from ._campaign import play
from ._world import Options

MIX = (
    Options(),
    Options(force=("restore", "clone")),
    Options(),
    Options(force=("replica restored", "restore")),
)
"""Seed ``s`` is played with the options at ``s % 4``."""
WORLD_S_MAX = 120
"""A world takes a fraction of a second, and its steps are bounded: one that lasts so long hangs."""


def hunt(seeds: int) -> dict[str, Any]:
    """Play seeds from 0 on; how many it took to see a broken promise, and which it was."""
    for seed in range(seeds):
        faulthandler.dump_traceback_later(WORLD_S_MAX, exit=True)
        try:
            result = play(seed, MIX[seed % len(MIX)])
        finally:
            faulthandler.cancel_dump_traceback_later()
        if result.violations:
            first = result.violations[0]
            return {"seeds": seed + 1, "promise": first.promise, "story": first.story[:500]}
    return {"seeds": seeds, "promise": None, "story": ""}


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    print(json.dumps(hunt(int(sys.argv[1]))))
