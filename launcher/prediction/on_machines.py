"""Predict a run on machines."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.config.compose import Composed
from launcher.config.hardware import Hardware
from launcher.config.layers import COMMAND_LINE
from launcher.counts import count_of
from launcher.data.inspection import Inspection
from launcher.errors import Problem, UserError
from launcher.launch.devices import Devices
from launcher.launch.prepare import prepare
from launcher.prediction.machines import gpu_of
from launcher.prediction.offers import Offer, offers_of, with_front
from launcher.prediction.prediction import Predictor
from launcher.prediction.profiles import read_profiles
from launcher.prediction.remedies import checkpoints, chosen_steps, faster_loader


class Offered(NamedTuple):
    """The offers of machines, notes on the run and profiles, and for one machine what removes its bottleneck."""

    offers: list[Offer]
    notes: list[str]
    remedies: list[str]


def offers_on(composed: Composed, chosen: Sequence[Hardware], seen: Inspection | None = None) -> Offered:
    """Predict a run on machines; seen: its images, if they were listed before."""
    profiles, notes = read_profiles(Path(composed.config.runs))
    predictors: dict[int, Predictor] = {}
    candidates: list[Offer] = []
    remedies: list[str] = []
    for machine in chosen:
        gpu_of(machine)  # note: refuses one without a known GPU before its steps are counted
        count = machine.gpus or 1
        if (nproc := (launch := composed.config.launch).nproc) not in ("auto", count):
            key = "launch.nproc" if composed.origins.get("launch.nproc") == COMMAND_LINE else "launch"
            message = f"predictions use all {count_of(count, 'GPU')} of {machine.name}; omit {key}"
            raise UserError(Problem(message, key, launch.name if key == "launch" else nproc))
        if count not in predictors:
            devices = Devices("cuda", count)
            prepared = prepare(
                composed, devices=devices, seen=seen, must_exist=False, packages=False, is_new=False, weights=False
            )
            predictors[count] = Predictor(prepared.plan)
            notes = [*notes, *(note for note in prepared.notes if note not in notes)]
        predictor = predictors[count]
        candidates += (here := offers_of(predictor, machine, profiles))
        if len(chosen) == 1:
            plan, prediction = predictor.plan, here[0].prediction
            remedies += faster_loader(predictor, prediction)
            notes = [*notes, *chosen_steps(plan, prediction), *checkpoints(plan, prediction)]
    return Offered(with_front(candidates), notes, remedies)
