"""Call the functions of TESTS_IN_RANKS in each rank, before it imports its target.

The ranks of Slurm's jobs are forks of their launcher, which imports for both.
"""

import os
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_RANK = "launcher.rank.main"


class _BeforeTarget:
    """An importer that finds no module, and calls the functions on the import of the target."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        if name == sys.orig_argv[sys.orig_argv.index(_RANK) + 1].partition(":")[0]:
            sys.meta_path.remove(self)
            _call_functions()


def _call_functions() -> None:
    for function in os.environ.get("TESTS_IN_RANKS", "").split():
        pkgutil.resolve_name(function)()


def _become(words: Sequence[str], environment: Mapping[str, str]) -> None:
    _call_functions()
    fork_server.become(words, environment)


if {"TRAIN_TEST_PROCESSOR", "TRAIN_TEST_CORES"} & os.environ.keys():
    from tests.other_machine import simulate

    simulate()
if _RANK in sys.orig_argv:
    sys.meta_path.insert(0, _BeforeTarget())
elif "SLURM_PROCID" in os.environ and Path(sys.orig_argv[1]).name == "train":
    import launcher.training.worker  # noqa: F401
    from tests import fork_server, forked_ranks

    forked_ranks.serve(_become)
