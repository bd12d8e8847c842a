"""Device histories for tests: made up from a seed and written as files, and the shared one."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

KINTO = Path(__file__).parents[3] / "shared" / "data" / "histories" / "kinto.jsonl.gz"

Step = dict[str, Any]


def kinto() -> Path:
    """The shared history; without it the test fails in CI, and is skipped elsewhere."""
    if not KINTO.is_file():
        reason = f"the shared history {KINTO} is not there"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return KINTO


def written(device: str, at: int, *changes: list[Any]) -> Step:
    return {"do": "write", "device": device, "at": at, "changes": list(changes)}


def synced(device: str) -> Step:
    return {"do": "sync", "device": device}


def made_up(seed: int, *, devices: int = 6, steps: int = 90) -> list[Step]:
    """Devices that write to a few records with clocks that jump, and sync now and then."""
    rng = random.Random(seed)
    made: list[Step] = []
    for _ in range(steps):
        device = f"d{rng.randrange(devices)}"
        if rng.random() < 0.4:
            made.append(synced(device))
            continue
        ids = rng.sample(range(12), rng.randint(1, 3))
        at = 1_400_000_000_000 + rng.randrange(10_000)
        made.append(written(device, at, *(_change(rng, f"r{id_}") for id_ in ids)))
    return made


def _change(rng: random.Random, id_: str) -> list[Any]:
    if rng.random() < 0.2:
        return ["delete", id_]
    return ["put", id_, {"size": rng.randrange(1000), "name": "ä" * rng.randrange(9)}]


def header_of(steps: list[Step]) -> dict[str, int]:
    writes = [step for step in steps if step["do"] == "write"]
    changes = [change for write in writes for change in write["changes"]]
    return {
        "history": 1,
        "devices": len({step["device"] for step in steps}),
        "records": len({change[1] for change in changes}),
        "writes": len(writes),
        "changes": len(changes),
        "syncs": len(steps) - len(writes),
    }


def write_history(path: Path, steps: list[Step]) -> Path:
    """A history file; gzipped when its name says so."""
    lines = [json.dumps(line) + "\n" for line in (header_of(steps), *steps)]
    data = "".join(lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
