"""Networks built from the config of a run: with its initial weights, or as the teacher of another run."""

import hashlib
import json
from collections.abc import Mapping

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor, nn

from launcher.algorithms.base import Context, Teacher
from launcher.algorithms.engine import Engine
from launcher.config.resolved import portable, typed_run
from launcher.config.schema import RunConfig
from launcher.errors import Problem, UserError
from launcher.files.disk import patiently
from launcher.models.build import build_model
from launcher.plan.plan import Plan, plan_for
from launcher.records.run_folder import RunFolder


def run_network(plan: Plan, weights: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Return the run's network with these weights, or initial ones, on the CPU."""
    config = plan.config
    outputs = config.task.outputs(config.dataset)
    engine = Engine(Context(plan, outputs))
    network = build_model(config.model, outputs, config.loss, config.seed, config.dataset.channels)
    engine.change_model(network)
    if weights is not None:
        network.load_state_dict(dict(weights))
    return network


def teacher_of(config: RunConfig, weights: Mapping[str, Tensor] | None = None) -> Teacher:
    """Return the network that a run of this config trains as a teacher, on the CPU; weights: None for initial ones."""
    plan = plan_for(config, 1)
    network = run_network(plan, weights)
    return Teacher(network.eval().requires_grad_(False), plan.full_size, *config.dataset.normalization)


def teacher_file(config: RunConfig, weights: Mapping[str, Tensor]) -> bytes:
    """Return the content of `teacher.safetensors`: the weights, and the config of the run that trained them."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    return save(tensors, {"config": json.dumps(portable(config))})


def check_teacher(config: RunConfig, content: bytes, origin: object) -> str:
    """Return the digest of a teacher's file.

    Raises UserError if the run has had another teacher.
    """
    values, digest = config.algorithms.teaching, hashlib.sha256(content).hexdigest()
    assert values is not None
    if values.teacher_sha256 not in (None, digest):
        message = f"{origin} is another teacher than that of this run (teacher_sha256={values.teacher_sha256})"
        raise UserError(Problem(f"{message}; restore its file, or start a new run", values.key, values.teacher))
    return digest


def read_initial(folder: RunFolder) -> dict[str, Tensor]:
    """Return the pretrained weights in a run's folder.

    Raises UserError if the file is missing or damaged, and DiskError if it cannot be read.
    """
    try:
        return load(patiently(folder.initial.read_bytes, folder.initial))
    except (OSError, SafetensorError) as error:
        message = f"{folder.initial}, the run's pretrained weights, cannot be read ({error}); use another run_name"
        raise UserError(message) from None


def read_teacher(folder: RunFolder, config: RunConfig, device: torch.device) -> Teacher | None:
    """Return the teacher in a run's folder on the device; None for a run without one.

    Raises UserError if the file is missing, damaged or another than at the start of the run, and DiskError if it cannot
    be read.
    """
    if config.algorithms.teaching is None:
        return None
    try:
        content = patiently(folder.teacher.read_bytes, folder.teacher)
        check_teacher(config, content, folder.teacher)
        with safe_open(folder.teacher, framework="pt") as file:
            trained = typed_run(json.loads(file.metadata()["config"]), str(folder.teacher))
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{folder.teacher} cannot be read ({error}); remove it if it is there, and resume the run"
        ) from None
    teacher = teacher_of(trained, load(content))
    teacher.network.to(device)
    return teacher
