"""Slurm jobs: one task per node, which saves a checkpoint before its time limit and is requeued until it finishes."""

import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT, AnyPath, Count
from launcher.errors import DONE, EXIT_USER_ERROR, INTERRUPTED, TERMINATED, Problem, UserError
from launcher.submit.job import NUMBER, Job, Variables, command, dns_name, exports, head
from launcher.submit.own_files import has_own_files

# note: srun kills the other tasks a minute after the first exits, not at once, so that rank 0 can plot the curve
_SRUN = 'srun --kill-on-bad-exit=0 --wait=60 --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_ON_NODE"'
_HEAD = f"""\
set -uo pipefail

# note: the number of a task of an array is also that of the array for one of them
job=${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}
requested="" ended="" retry=""
# the tasks save a checkpoint after the current step and exit with {TERMINATED}
trap 'requested=yes; scancel --signal=USR1 "$job"' USR1
# cancelled or preempted: the tasks get the signal too, and Slurm decides whether to requeue
trap 'ended=yes' TERM
"""
_LOG = "%x-%j.log"
_DIRECTIVE = "#SBATCH"
_RENDEZVOUS = """\
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 20000))
"""
_TAIL = f"""\
step=$!
newest_checkpoint() {{ find "$runs/$run_name/checkpoints" -name 'step-*.pt' 2>/dev/null | sort | tail -n 1; }}
before=$(newest_checkpoint)
wait "$step"; code=$?
while kill -0 "$step" 2>/dev/null; do wait "$step"; code=$?; done
after=$(newest_checkpoint)
case "$code" in
{DONE} | {EXIT_USER_ERROR} | {INTERRUPTED}) ;;
{TERMINATED}) retry=$requested ;;
*) if [ -z "$ended" ]; then retry=yes; fi ;;
esac
# after a new checkpoint, else only once after a signal: a fault, or a turn too short for a step, would repeat
if [ -z "$retry" ]; then
    :
elif [ "$after" != "$before" ] || {{ [ "$code" -gt 128 ] && [ -z "${{SLURM_RESTART_COUNT:-}}" ]; }}; then
    echo "exit code $code: job $job is requeued and continues from ${{after:-the first step}}"
    scontrol requeue "$job"
else
    echo "exit code $code: job $job is not requeued, because it has saved no new checkpoint"
fi
exit "$code"
"""


def _time(text: str) -> str:
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", text):
        raise ValueError("must be minutes, hours:minutes:seconds or days-hours, such as 08:00:00")
    return text


def _seconds(text: str) -> int:
    """Convert a time in sbatch's format to seconds; 0 is no limit."""
    days, _, clock = text.rpartition("-")
    parts = list(map(int, clock.split(":")))
    units = (3600, 60, 1) if days or len(parts) == 3 else (60, 1)
    return 86400 * int(days or 0) + sum(part * unit for part, unit in zip(parts, units, strict=False))


@dataclass(frozen=True, config=STRICT)
class Slurm:
    """Values of a Slurm job: `time` in sbatch's format, a bare number in minutes; `save_before_end` in seconds.

    `env` are variables of the job; `lines` are run before the first task, such as `module load cuda`, or are options of
    sbatch, such as `#SBATCH --qos=high`.
    """

    OTHERS: ClassVar[str] = "for other options of sbatch set submit.lines, such as '[\"#SBATCH --{name}={value}\"]'"
    time: Annotated[str, AfterValidator(_time)]
    save_before_end: Count
    partition: str | None
    account: str | None
    constraint: str | None
    mem: str | None
    env: Variables
    lines: list[str]
    program: AnyPath | None


def render(job: Job, values: Slurm) -> str:
    """Render the batch script; without a `program` it runs the `train` that submits it.

    Raises UserError if the time limit is not above `save_before_end`.
    """
    quoted = shlex.quote(job.name)
    turn = _turn(job, values, quoted if job.named else f'{quoted}-"$SLURM_JOB_ID"')
    return _of_runs(job, values, turn, _LOG)


def render_array(name: str, jobs: Mapping[int, Job], values: Slurm) -> str:
    """Render the batch script of an array, whose task N runs job N; all have the nodes and GPUs of the first.

    Raises UserError if the time limit is not above `save_before_end`.
    """
    turns = (f"{number})\n{_turn(job, values, shlex.quote(job.name))};;\n" for number, job in jobs.items())
    script = f'case "$SLURM_ARRAY_TASK_ID" in\n{"".join(turns)}esac\n'
    first = replace(next(iter(jobs.values())), name=name)
    return _of_runs(first, values, script, "%x-%A_%a.log", f"array={','.join(map(str, jobs))}")


def render_after(job: Job, arrays: Iterable[str], commands: Iterable[Sequence[str]], values: Slurm) -> str:
    """Render the batch script of commands of `train`, on one such node once all tasks of the arrays have succeeded."""
    after = (f"dependency=afterok:{':'.join(arrays)}", "kill-on-invalid-dep=yes")
    lines = " &&\n".join(f"{_program(values)} {shlex.join(words)}" for words in commands)
    return f"#!/usr/bin/env bash\n{_options(replace(job, nodes=1), values, _LOG, *after)}\n{_own(job, values)}{lines}\n"


def _of_runs(job: Job, values: Slurm, turn: str, log: str, *more: str) -> str:
    """Return the script of a job or an array, around what starts a run in the background."""
    if 0 < _seconds(values.time) <= values.save_before_end:
        message = f"must be less than submit.time={values.time}, or the run would stop as soon as it starts"
        raise UserError(Problem(message, "submit.save_before_end", values.save_before_end))
    comments = head(job, "sbatch FILE", f"tail -F {dns_name(job.name)}-{NUMBER}.log")
    options = _options(job, values, log, f"signal=B:USR1@{values.save_before_end}", "requeue", *more)
    rendezvous = _RENDEZVOUS if job.nodes > 1 else ""
    return f"#!/usr/bin/env bash\n{comments}{options}\n{_own(job, values)}{_HEAD}\n{rendezvous}{turn}{_TAIL}"


def _turn(job: Job, values: Slurm, run_name: str) -> str:
    """Return the lines that start or resume a run in the background, because bash handles signals only in `wait`."""
    lines = command(job, f"{_SRUN} {_program(values)}", runs=job.runs, run_name=run_name, rdzv='"$first:$port"')
    return f"runs={shlex.quote(job.runs)}\n{lines} &\n"


def _own(job: Job, values: Slurm) -> str:
    """Return the user's lines before the run."""
    # note: `train` finds the user's options in the folder in which it starts, and without them might use others
    place = [f"cd {shlex.quote(str(Path.cwd()))} || exit {EXIT_USER_ERROR}"] if has_own_files(job.modules) else []
    lines = (line for line in values.lines if not line.startswith(_DIRECTIVE))
    return "".join(f"{line}\n" for line in [*exports(values.env), *lines, *place])


def _program(values: Slurm) -> str:
    if values.program is None and Path(sys.argv[0]).name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m launcher"
    return shlex.quote(values.program or str(Path(sys.argv[0]).resolve()))


def _options(job: Job, values: Slurm, log: str, *more: str) -> str:
    options = [
        f"job-name={dns_name(job.name)}",
        f"nodes={job.nodes}",
        "ntasks-per-node=1",
        *([f"gpus-per-node={job.gpus}"] if job.gpus else []),
        "exclusive",
        f"time={values.time}",
        "open-mode=append",
        f"output={log}",
        *more,
    ]
    optional = {name: getattr(values, name) for name in ("partition", "account", "constraint", "mem")}
    options += [f"{name}={value}" for name, value in optional.items() if value is not None]
    # note: sbatch reads no option after the first command; of equal ones it uses the last
    others = [line for line in values.lines if line.startswith(_DIRECTIVE)]
    return "".join(f"{line}\n" for line in [*(f"{_DIRECTIVE} --{option}" for option in options), *others])
