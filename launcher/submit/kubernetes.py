"""A Kubernetes job: batch/v1 Job on one node, Kubeflow's PyTorchJob on several."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT, Count
from launcher.errors import EXIT_USER_ERROR
from launcher.submit.job import PORT, Job, command, dns_name, dump, stamped

_CONTAINER = "pytorch"  # the training operator requires this name


def _memory(text: str) -> str:
    if not re.fullmatch(r"\d+(Mi|Gi|Ti|M|G|T)", text):
        raise ValueError("must be a whole number with Mi, Gi, Ti, M, G or T, such as 64Gi")
    return text


@dataclass(frozen=True, config=STRICT)
class Kubernetes:
    """Values of a Kubernetes job: `data` and `runs` are persistent volume claims, `grace` is in seconds."""

    image: str
    data: str
    runs: str
    shared_memory: Annotated[str, AfterValidator(_memory)]
    retries: Annotated[int, Field(ge=0)]
    grace: Count


def render(job: Job, values: Kubernetes) -> str:
    """Render the manifest."""
    run_name = stamped(job)
    name = dns_name(run_name)
    manifest = _job(job, values, name, run_name) if job.nodes == 1 else _pytorch_job(job, values, name, run_name)
    return f"# {job.price}\n{dump(manifest)}"


def _job(job: Job, values: Kubernetes, name: str, run_name: str) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "backoffLimit": values.retries,
            "podFailurePolicy": {
                "rules": [
                    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [EXIT_USER_ERROR]}},
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "template": {"spec": {"restartPolicy": "Never", **_pod(job, values, name, run_name)}},
        },
    }


def _pytorch_job(job: Job, values: Kubernetes, name: str, run_name: str) -> dict[str, Any]:
    def replicas(count: int) -> dict[str, Any]:
        # note: ExitCode retries 128 and above, so an error of the user (2) ends the job at once
        return {
            "replicas": count,
            "restartPolicy": "ExitCode",
            "template": {"spec": _pod(job, values, name, run_name)},
        }

    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {
            "runPolicy": {"backoffLimit": values.retries, "cleanPodPolicy": "Running"},
            "pytorchReplicaSpecs": {"Master": replicas(1), "Worker": replicas(job.nodes - 1)},
        },
    }


def _pod(job: Job, values: Kubernetes, name: str, run_name: str) -> dict[str, Any]:
    first = f"{name}-master-0:{PORT}"
    lines = command(job, "exec train", runs="/runs", run_name=shlex.quote(run_name), rdzv=first)
    container: dict[str, Any] = {
        "name": _CONTAINER,
        "image": values.image,
        "command": ["bash", "-c", lines + "\n"],
        "volumeMounts": [
            {"name": "data", "mountPath": "/data", "readOnly": True},
            {"name": "runs", "mountPath": "/runs"},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }
    if job.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": job.gpus}}
    return {
        "terminationGracePeriodSeconds": values.grace,
        "containers": [container],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": values.data}},
            {"name": "runs", "persistentVolumeClaim": {"claimName": values.runs}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": values.shared_memory}},
        ],
    }
