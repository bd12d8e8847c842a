"""What a process takes, as the system tells it."""

from __future__ import annotations

from pathlib import Path

from syncline.sync import LocalError

WHERE = "where the system has no /proc, nothing tells what another process takes"


def can_measure() -> bool:
    return Path("/proc/self/status").exists()


def peak_mib(pid: int) -> float:
    """The most memory that a process ever held, in MiB."""
    return _line(pid, "VmHWM") / 1024


def resident_kib(pid: int) -> int:
    """The memory that a process holds now, in KiB."""
    return _line(pid, "VmRSS")


def _line(pid: int, name: str) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise LocalError(f"process {pid} is gone, and so is what it took") from error
    for line in text.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise LocalError(f"process {pid} has ended, and holds no memory any more")
