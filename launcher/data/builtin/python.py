"""The source of Python's standard library, as text."""

import sysconfig
from pathlib import Path

from launcher.config.builtin import BuiltInText


class Python(BuiltInText):
    extension = ".py"
    # note: distributions differ in which tests of Python they have
    without = ("test", "tests", "site-packages", "dist-packages", "idlelib", "lib2to3")

    def root(self) -> Path:
        return Path(sysconfig.get_path("stdlib"))
