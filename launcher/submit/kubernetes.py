"""A Kubernetes job: a Job on one node; on several a TrainJob of Kubeflow Trainer v2, or a JobSet without it.

Fields: batch/v1, trainer.kubeflow.org/v1alpha1 and jobset.x-k8s.io/v1alpha2.
"""

import re
import shlex
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT, Count
from launcher.config.yaml_file import as_yaml
from launcher.errors import EXIT_USER_ERROR, Problem, UserError
from launcher.submit.job import PORT, Job, command, dns_name, head, stamped

_NODE = "node"  # Kubeflow Trainer requires this name of the container, and names the first node's host by it


def _memory(text: str) -> str:
    if not re.fullmatch(r"\d+(Mi|Gi|Ti|M|G|T)", text):
        raise ValueError("must be a whole number with Mi, Gi, Ti, M, G or T, such as 64Gi")
    return text


@dataclass(frozen=True, config=STRICT)
class Kubernetes:
    """Values of a Kubernetes job: `data` and `runs` are persistent volume claims, `grace` is in seconds."""

    kind: Literal["Job", "TrainJob", "JobSet"] | None
    image: str
    data: str
    runs: str
    shared_memory: Annotated[str, AfterValidator(_memory)]
    retries: Annotated[int, Field(ge=0)]
    grace: Count
    queue: str | None


def render(job: Job, values: Kubernetes) -> str:
    """Render the manifest; a TrainJob follows its TrainingRuntime as a second document.

    Raises UserError if `kind` is Job and the run has several nodes.
    """
    kind = values.kind or ("Job" if job.nodes == 1 else "TrainJob")
    if kind == "Job" and job.nodes > 1:
        message = f"runs one node, not launch.nnodes={job.nodes}; set submit.kind=TrainJob or submit.kind=JobSet"
        raise UserError(Problem(message, "submit.kind", kind))
    run_name = stamped(job)
    name = dns_name(run_name)
    first = "$PET_MASTER_ADDR:$PET_MASTER_PORT" if kind == "TrainJob" else f"{name}-{_NODE}-0-0.{name}:{PORT}"
    lines = command(job, "exec train", runs="/runs", run_name=shlex.quote(run_name), rdzv=f'"{first}"')
    start = {"image": values.image, "command": ["bash", "-c", lines + "\n"]}
    gpus = {"limits": {"nvidia.com/gpu": job.gpus}} if job.gpus else {}
    policy = f"{as_yaml(_network_policy(name))}---\n" if job.nodes > 1 else ""
    metadata: dict[str, Any] = {"name": name}
    if values.queue:
        metadata["labels"] = {"kueue.x-k8s.io/queue-name": values.queue}
    if kind == "TrainJob":
        trainer = {"numNodes": job.nodes, **start, **({"resourcesPerNode": gpus} if gpus else {})}
        runtime = as_yaml(_runtime(job, values, name))
        return _head(job, kind, name) + f"{runtime}---\n{policy}{as_yaml(_train_job(values, metadata, trainer))}"
    pod = {"containers": [_container(**start, **({"resources": gpus} if gpus else {}))], **_volumes(values)}
    spec = _job_spec(job, values, pod)
    if kind == "JobSet":
        nodes = {"completionMode": "Indexed", "completions": job.nodes, "parallelism": job.nodes}
        spec = {"replicatedJobs": [{"name": _NODE, "replicas": 1, "template": {"spec": {**nodes, **spec}}}]}
    version = "batch/v1" if kind == "Job" else "jobset.x-k8s.io/v1alpha2"
    manifest = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
    return _head(job, kind, name) + policy + as_yaml(manifest)


def _head(job: Job, kind: str, name: str) -> str:
    # note: the JobSet of a TrainJob has its name
    first_node = (
        f"--tail=-1 --selector=jobset.sigs.k8s.io/jobset-name={name},batch.kubernetes.io/job-completion-index=0"
    )
    submit = "kubectl apply --filename FILE" if kind == "TrainJob" else "kubectl create --filename FILE"
    return head(job, submit, f"kubectl logs --follow {f'job/{name}' if kind == 'Job' else first_node}")


def _network_policy(name: str) -> dict[str, Any]:
    """Return the policy by which the pods of a job accept connections only from each other."""
    pods = {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": name}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": pods}]}]},
    }


def _job_spec(job: Job, values: Kubernetes, pod: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of a Job, in which exit code 2 ends the job and an eviction does not count as a failure."""
    rules = [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [EXIT_USER_ERROR]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    policy = {"restartPolicy": "Never", "terminationGracePeriodSeconds": values.grace}
    return {
        # note: counts the failed pods of all nodes
        "backoffLimit": values.retries * job.nodes,
        "podFailurePolicy": {"rules": rules},
        "template": {"spec": {**policy, **pod}},
    }


def _runtime(job: Job, values: Kubernetes, name: str) -> dict[str, Any]:
    """Return the TrainingRuntime: the restarts, which a TrainJob cannot set."""
    template = {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": _job_spec(job, values, {"containers": [{"name": _NODE}]}),
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": name, "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {
            "mlPolicy": {"numNodes": job.nodes, "torch": {}},
            "template": {"spec": {"replicatedJobs": [{"name": _NODE, "replicas": 1, "template": template}]}},
        },
    }


def _train_job(values: Kubernetes, metadata: dict[str, Any], trainer: dict[str, Any]) -> dict[str, Any]:
    pod = {"containers": [_container()], **_volumes(values)}
    patched = {"name": _NODE, "template": {"spec": {"template": {"spec": pod}}}}
    patch = {"template": {"spec": {"replicatedJobs": [patched]}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata,
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": metadata["name"]},
            "trainer": trainer,
            "runtimePatches": [{"manager": "train/submit", "trainingRuntimeSpec": patch}],
        },
    }


def _container(**more: Any) -> dict[str, Any]:
    mounts = [
        {"name": "data", "mountPath": "/data", "readOnly": True},
        {"name": "runs", "mountPath": "/runs"},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
    ]
    return {"name": _NODE, **more, "volumeMounts": mounts}


def _volumes(values: Kubernetes) -> dict[str, Any]:
    return {
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": values.data}},
            {"name": "runs", "persistentVolumeClaim": {"claimName": values.runs}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": values.shared_memory}},
        ]
    }
