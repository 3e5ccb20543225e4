"""Completion in bash, zsh and fish, each in its own terminal."""

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

BIN = Path(sys.executable).parent
COMMANDS = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}
SET_UP = {
    "bash": "source <(train completion bash)",
    "zsh": "autoload -U compinit; compinit -u -D; source <(train completion zsh)",
}
CASES = [
    ("train pla", "train plan "),
    ("train plan recipe=hot_cut", "train plan recipe=hot_cutmix "),
    ("train optimizer=decou", "train optimizer=decoupled_sgd "),
    ("train algorithms.sam.batchnorm=onc", "train algorithms.sam.batchnorm=once "),
    ("train algorithms.stochastic_depth.drop", "train algorithms.stochastic_depth.drop_rate="),
]


class Terminal:
    """A shell on a pseudo terminal."""

    def __init__(self, shell: str, folder: Path) -> None:
        self.process, self.end = pty.fork()
        if self.process == 0:
            environment = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(folder), "TERM": "dumb", "PS1": "> "}
            os.execvpe(COMMANDS[shell][0], COMMANDS[shell], {**environment, "LC_ALL": "C.UTF-8"})
        self.output = ""

    def send(self, text: str) -> None:
        os.write(self.end, text.encode())

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """Wait until the shell prints a text, and return the rest of its line."""
        end = time.monotonic() + seconds
        while text not in self.output or "\n" not in self.output.partition(text)[2]:
            assert time.monotonic() < end, f"no {text!r} in {self.output!r}"
            if select.select([self.end], [], [], 0.1)[0]:
                self.output += os.read(self.end, 4096).decode(errors="replace")
        return self.output.partition(text)[2].splitlines()[0]

    def close(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.end)


def completed(terminal: Terminal, line: str, number: int) -> str:
    """Return the line after a tab, by an `echo` inserted before it and a word typed after it."""
    # note: the shell joins the mark from two parts, so that the echo of the typed line does not contain it
    terminal.send(f"{line}\tnext\x01echo MARK''{number}: \n")
    return terminal.wait_for(f"MARK{number}: ")


@pytest.mark.parametrize("shell", COMMANDS)
def test_a_tab_completes(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    terminal = Terminal(shell, tmp_path)
    try:
        terminal.send("bindkey -e\n" if shell == "zsh" else "\n")
        terminal.send(f"{SET_UP[shell]}; echo READY''1\n")
        terminal.wait_for("READY1")
        for number, (line, expected) in enumerate(CASES):
            assert completed(terminal, line, number).rstrip() == f"{expected}next"
    finally:
        terminal.close()


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_fish_completes(line: str, expected: str, tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    script = f"train completion fish | source; complete --do-complete '{line}'"
    environment = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "dumb"}
    done = subprocess.run(
        ["fish", "--no-config", "-c", script], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.split() == [expected.split()[-1]], done.stderr
