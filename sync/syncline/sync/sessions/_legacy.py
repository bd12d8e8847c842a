"""Flat names of before: callable for one minor version more, each forwards and says so."""

from __future__ import annotations

import warnings
from typing import Any


class FlatNames:
    """The flat methods of a runtime, and the facet that each stands for now.

    Every one of them warns with DeprecationWarning. They go with the next minor version.
    """

    def create_session(self, *args: Any, **options: Any) -> Any:
        return self._forward("create_session", "create")(*args, **options)

    def resume_session(self, *args: Any, **options: Any) -> Any:
        return self._forward("resume_session", "resume")(*args, **options)

    def delete_session(self, *args: Any, **options: Any) -> Any:
        return self._forward("delete_session", "delete")(*args, **options)

    def get_active_session(self) -> Any:
        return self._forward("get_active_session", "active_session")

    def create_checkpoint(self, *args: Any, **options: Any) -> Any:
        return self._forward("create_checkpoint", "checkpoints.create")(*args, **options)

    def list_checkpoints(self, *args: Any, **options: Any) -> Any:
        return self._forward("list_checkpoints", "checkpoints.list")(*args, **options)

    def get_latest_checkpoint(self, *args: Any, **options: Any) -> Any:
        return self._forward("get_latest_checkpoint", "checkpoints.latest")(*args, **options)

    def rollback_to_checkpoint(self, *args: Any, **options: Any) -> Any:
        return self._forward("rollback_to_checkpoint", "checkpoints.rollback")(*args, **options)

    def fork_from_checkpoint(self, *args: Any, **options: Any) -> Any:
        return self._forward("fork_from_checkpoint", "checkpoints.fork")(*args, **options)

    def _forward(self, flat: str, path: str) -> Any:
        warnings.warn(
            f"{flat} is now {path}; the flat name goes with the next minor version",
            DeprecationWarning,
            stacklevel=3,
        )
        found: Any = self
        for name in path.split("."):
            found = getattr(found, name)
        return found
