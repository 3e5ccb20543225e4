"""Replace `auto` of compile and cuda_graphs at the start of a run, by a prediction for this machine's GPUs."""

from dataclasses import replace

from launcher.compute.probe import usable_cores
from launcher.config.gpus import efficiencies, gpus
from launcher.config.schema import RunConfig
from launcher.doctor.machine import judge_compiler
from launcher.launch.prepare import Prepared
from launcher.measure.launch import MEASURES
from launcher.prediction.faster import AUTO, described, is_open, why_eager, with_eager_steps
from launcher.prediction.prediction import Predictor
from launcher.prediction.profiles import gpu_named
from launcher.records.progress import duration


def with_fastest_steps(prepared: Prepared) -> Prepared:
    """Return the run with `on` where it is predicted to be faster, with a note; without CUDA with `off`."""
    if not is_open(prepared.plan.config):
        return prepared
    config, note = _chosen(prepared) if prepared.devices.kind == "cuda" else (None, None)
    config = config or with_eager_steps(prepared.plan.config)
    notes = [*([f"compile=auto: {note}"] if note else []), *prepared.notes]
    return replace(prepared, plan=replace(prepared.plan, config=config), notes=notes)


def _chosen(prepared: Prepared) -> tuple[RunConfig | None, str]:
    """Return the config with the fastest steps, None for eager ones, and a note."""
    plan, devices = prepared.plan, prepared.devices
    name = gpu_named(devices.gpu or "")
    if name is None:
        return None, f"eager steps, since {devices.gpu or 'these GPUs'} cannot be predicted; compile=on may be faster"
    gpu = gpus()[name]
    if reason := why_eager(plan.config, gpu):
        return None, f"eager steps ({reason})"
    compiler = judge_compiler("on")
    if compiler.status != "ok" and plan.config.compile == AUTO:
        plan = replace(plan, config=replace(plan.config, compile="off"))
    machine = replace(plan.config.hardware, gpu=name, gpus=devices.processes, cores=usable_cores())
    values = efficiencies()
    try:
        predictor = Predictor(plan)
        config = predictor.fastest(machine, gpu, values)
    except Exception as error:  # note: a network of the user's that cannot be traced must not stop a run
        return None, f"eager steps, since they cannot be predicted ({type(error).__name__})"
    before, after = (predictor.seconds(one, machine, gpu, values) for one in (with_eager_steps(plan.config), config))
    missing = f" ({compiler.observation})" if compiler.status != "ok" else ""
    if config == with_eager_steps(plan.config):
        return config, f"eager steps, predicted to be the fastest{missing}"
    return (
        config,
        f"{described(config)} steps, predicted to take {duration(after)} instead of {duration(before)}{missing}",
    )


STARTS = MEASURES._replace(steps=with_fastest_steps)
