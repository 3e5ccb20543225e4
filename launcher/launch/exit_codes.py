"""What the exit code of `train` says; user errors are 2 (launcher.errors)."""

from __future__ import annotations

DONE = 0
FAILED = 1
INTERRUPTED = 130  # Ctrl-C: saved, `train resume` goes on
TERMINATED = 143  # SIGTERM or SIGUSR1: saved, `train resume` goes on
