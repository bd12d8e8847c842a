"""The testing kit: worlds from a seed, checkers, and what others point at their own code."""

from ._campaign import Campaign, Failure, play, run, shrink
from ._checkers import Violation
from ._world import FAULTS, Options, Result, World

__all__ = [
    "FAULTS",
    "Campaign",
    "Failure",
    "Options",
    "Result",
    "Violation",
    "World",
    "play",
    "run",
    "shrink",
]
