"""The testing kit: worlds from a seed, checkers, and what others point at their own code."""

from ._world import FAULTS, Options, Result, World

__all__ = ["FAULTS", "Options", "Result", "World"]
