"""The predicted time and cost of a run in one line."""

from pathlib import Path

from launcher.config.gpus import gpus
from launcher.plan.plan import Plan
from launcher.records.progress import duration
from launcher_lab.predict.machines import gpu_of
from launcher_lab.predict.offers import memory_problem, network_problem, offers
from launcher_lab.predict.prediction import Predictor, efficiencies
from launcher_lab.predict.profiles import correction, read_profiles


def total(plan: Plan, *, is_spot: bool) -> str | None:
    """Return a run's time and cost on its machine, on demand or spot, with their ranges.

    None where they cannot be predicted: on a part of a machine, an unknown network or an unknown GPU.
    """
    config, machine = plan.config, plan.config.hardware
    is_whole = config.launch.device != "cpu" and plan.world_size == (machine.gpus or 0) * config.launch.nnodes
    if machine.gpu not in gpus() or not is_whole or network_problem(config, machine):
        return None
    try:
        profiles, _ = read_profiles(Path(config.runs))
        corrected = correction(plan, str(machine.gpu), profiles, efficiencies())
        prediction = Predictor(plan).on(
            machine, gpu_of(machine), correction=corrected.factor, made_from=corrected.made_from
        )
    except Exception:  # note: a network of the user's that cannot be traced must not stop a job
        return None
    several = {one.spot: one for one in offers(plan, prediction, memory_problem(plan, prediction))}
    offer = several.get(is_spot, several[False])
    if offer.problem:
        return None
    wall, cost, unit = offer.wall, offer.cost, machine.currency
    time = f"{duration(wall.seconds)} ({duration(wall.low)} to {duration(wall.high)})"
    money = f" and {cost.seconds:,.2f} {unit} ({cost.low:,.2f} to {cost.high:,.2f})" if cost else ""
    return f"in all {time}{money}{' on spot machines' if offer.spot else ''}, predicted: {prediction.made_from}"
