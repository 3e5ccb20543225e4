from __future__ import annotations

from hypothesis import settings

# note: timings of a shared machine say nothing, and a failure in CI must be the same everywhere
settings.register_profile("project", deadline=None, derandomize=True)
settings.load_profile("project")
