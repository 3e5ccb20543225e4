from __future__ import annotations

import os
import signal

from hypothesis import settings

# note: timings of a shared machine say nothing, and a failure in CI must be the same everywhere
settings.register_profile("project", deadline=None, derandomize=True)
settings.load_profile("project")

# note: in the background or under nohup these are ignored, and an image names a data folder: tests would inherit it
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.environ.pop("TRAIN_DATA", None)
