"""Train image classifiers, segmentations and GPT-2 by efficient recipes: one typed config, one process a GPU."""

from typing import TYPE_CHECKING, Any

from launcher.version import __version__ as __version__

if TYPE_CHECKING:
    from launcher.api import Run, UserError, compose, list_runs, load, plan_run, predict, resume, train

__all__ = ["Run", "UserError", "compose", "list_runs", "load", "plan_run", "predict", "resume", "train"]


def __getattr__(name: str) -> Any:
    # note: every rank and worker imports this package, and few use these functions
    if name in __all__:
        from launcher import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
