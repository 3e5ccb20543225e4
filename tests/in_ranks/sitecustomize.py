"""Call the functions of TESTS_IN_RANKS in each rank, before it imports its target."""

import os
import pkgutil
import sys
from collections.abc import Sequence

_RANK = "launcher.rank.main"


class _BeforeTarget:
    """An importer that finds no module, and calls the functions on the import of the target."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        if name == sys.orig_argv[sys.orig_argv.index(_RANK) + 1].partition(":")[0]:
            sys.meta_path.remove(self)
            for function in os.environ.get("TESTS_IN_RANKS", "").split():
                pkgutil.resolve_name(function)()


if _RANK in sys.orig_argv:
    sys.meta_path.insert(0, _BeforeTarget())
