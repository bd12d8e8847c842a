"""Hypothesis profiles: ``fast`` is the default, ``thorough`` is for a long look at the core.

    pytest tests/sync --hypothesis-profile=thorough

No example has a deadline: a busy machine is no failure.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

# The same examples every time, so that a red run is about the change and not about luck.
settings.register_profile(
    "fast", max_examples=150, deadline=None, derandomize=True, suppress_health_check=_QUIET
)
settings.register_profile(
    "thorough", max_examples=200_000, deadline=None, print_blob=True, suppress_health_check=_QUIET
)
settings.load_profile("fast")
