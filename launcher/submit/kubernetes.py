"""A Kubernetes job: a Job on one node; on several a TrainJob of Kubeflow Trainer v2, or a JobSet without it.

Fields: batch/v1, trainer.kubeflow.org/v1alpha1 and jobset.x-k8s.io/v1alpha2.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT, Count
from launcher.config.yaml_file import as_yaml
from launcher.errors import EXIT_USER_ERROR, Problem, UserError
from launcher.submit.job import PORT, Job, Variables, command, dns_name, head, stamped
from launcher.submit.own_files import FOLDER, own_files

# The share of a machine's cores and memory that a job requests, since its other pods need some.
_CORES, _MEMORY = 0.9, 0.8
_GROUP = 1000  # of the image's user, to whom volumes must belong
_NODE = "node"  # Kubeflow Trainer requires this name of the container, and names the first node's host by it


def _memory(text: str) -> str:
    if not re.fullmatch(r"\d+(Mi|Gi|Ti|M|G|T)", text):
        raise ValueError("must be a whole number with Mi, Gi, Ti, M, G or T, such as 64Gi")
    return text


@dataclass(frozen=True, config=STRICT)
class Kubernetes:
    """Values of a Kubernetes job: `data` and `runs` are persistent volume claims, `grace` is in seconds.

    `env` are variables of the job, `secrets` names of Secrets whose values become variables. `container` and `pod` are
    merged into the specs of these names last.
    """

    kind: Literal["Job", "TrainJob", "JobSet"] | None
    image: str
    data: str
    runs: str
    shared_memory: Annotated[str, AfterValidator(_memory)]
    retries: Annotated[int, Field(ge=0)]
    grace: Count
    queue: str | None
    namespace: str | None
    env: Variables
    secrets: list[str]
    container: dict[str, Any]
    pod: dict[str, Any]


def render(job: Job, values: Kubernetes) -> str:
    """Render the manifest as YAML documents, the job last.

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
    files = own_files(job.words, job.modules)
    place = f"cd {FOLDER}\n" if files else ""
    start = {"image": values.image, "command": ["bash", "-c", f"{place}{lines}\n"]}
    more = values.container.get("resources", {})
    if not isinstance(more, Mapping):
        message = "must be a mapping such as {limits: {memory: 128Gi}}"
        raise UserError(Problem(message, "submit.container.resources", more))
    resources = merged(_resources(job), more)
    metadata = _metadata(values, name)
    labelled = {**metadata, "labels": {"kueue.x-k8s.io/queue-name": values.queue}} if values.queue else metadata
    before = [_config_map(metadata, files)] if files else []
    policy = [_network_policy(metadata)] if job.nodes > 1 else []
    if kind == "TrainJob":
        trainer = {"numNodes": job.nodes, **start, **({"resourcesPerNode": resources} if resources else {})}
        own = _train_job(values, labelled, trainer, [*files])
        return _rendered(_head(job, values, kind, name), *before, _runtime(job, values, metadata), *policy, own)
    container = _container([*files], **start, **_variables(values), **({"resources": resources} if resources else {}))
    pod = merged({"containers": [merged(container, values.container)], **_volumes(values, name, [*files])}, values.pod)
    spec = _job_spec(job, values, pod)
    if kind == "JobSet":
        nodes = {"completionMode": "Indexed", "completions": job.nodes, "parallelism": job.nodes}
        spec = {"replicatedJobs": [{"name": _NODE, "replicas": 1, "template": {"spec": {**nodes, **spec}}}]}
    version = "batch/v1" if kind == "Job" else "jobset.x-k8s.io/v1alpha2"
    manifest = {"apiVersion": version, "kind": kind, "metadata": labelled, "spec": spec}
    return _rendered(_head(job, values, kind, name), *before, *policy, manifest)


def note_on_image(image: str) -> str | None:
    """Return a note on an image without a registry, which nodes must have already; None if it has one."""
    if "/" in image:
        return None
    return f"submit.image={image} names no registry, so each node must have it already; else set HOST/{image}"


def _resources(job: Job) -> dict[str, Any]:
    """Return the GPUs of a container and most of their share of the machine: without requests it is evicted first."""
    requests: dict[str, Any] = {"cpu": max(1, int(_CORES * job.cores))} if job.cores else {}
    requests |= {"memory": f"{int(_MEMORY * job.memory)}Gi"} if job.memory else {}
    limits = {"limits": {"nvidia.com/gpu": job.gpus}} if job.gpus else {}
    return {**({"requests": requests} if requests else {}), **limits}


def merged(values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with others merged in: mappings by key, lists one after the other; other values replace."""
    result = dict(values)
    for key, value in more.items():
        before = result.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            value = merged(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            value = [*before, *(one for one in value if one not in before)]
        result[key] = value
    return result


def _rendered(head: str, *documents: Mapping[str, Any]) -> str:
    return head + "---\n".join(map(as_yaml, documents))


def _metadata(values: Kubernetes, name: str) -> dict[str, Any]:
    return {"name": name, **({"namespace": values.namespace} if values.namespace else {})}


def _variables(values: Kubernetes) -> dict[str, Any]:
    """Return the fields of a container for the variables of the job."""
    env = [{"name": name, "value": str(value)} for name, value in values.env.items()]
    secrets = [{"secretRef": {"name": name}} for name in values.secrets]
    return {**({"env": env} if env else {}), **({"envFrom": secrets} if secrets else {})}


def _config_map(metadata: Mapping[str, Any], files: Mapping[str, Path]) -> dict[str, Any]:
    """Return the ConfigMap of the user's files, whose keys are numbers: a key has no slash."""
    data = {f"file-{number}": path.read_text("utf-8") for number, path in enumerate(files.values())}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _head(job: Job, values: Kubernetes, kind: str, name: str) -> str:
    # note: the JobSet of a TrainJob has its name
    first_node = (
        f"--tail=-1 --selector=jobset.sigs.k8s.io/jobset-name={name},batch.kubernetes.io/job-completion-index=0"
    )
    submit = "kubectl apply --filename FILE" if kind == "TrainJob" else "kubectl create --filename FILE"
    where = f" --namespace {values.namespace}" if values.namespace else ""
    return head(job, submit, f"kubectl logs{where} --follow {f'job/{name}' if kind == 'Job' else first_node}")


def _network_policy(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy by which the pods of a job accept connections only from each other."""
    pods = {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": metadata["name"]}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": pods}]}]},
    }


def _job_spec(job: Job, values: Kubernetes, pod: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of a Job, in which exit code 2 ends the job and an eviction does not count as a failure."""
    rules = [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [EXIT_USER_ERROR]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    policy = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": values.grace,
        "securityContext": {"fsGroup": _GROUP},
    }
    return {
        # note: counts the failed pods of all nodes
        "backoffLimit": values.retries * job.nodes,
        "podFailurePolicy": {"rules": rules},
        "template": {"spec": merged(policy, pod)},
    }


def _runtime(job: Job, values: Kubernetes, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the TrainingRuntime: what a TrainJob cannot set, such as the restarts."""
    own = {name: value for name, value in values.container.items() if name != "resources"}
    container = merged({"name": _NODE, **_variables(values)}, own)
    template = {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": _job_spec(job, values, merged({"containers": [container]}, values.pod)),
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {**metadata, "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {
            "mlPolicy": {"numNodes": job.nodes, "torch": {}},
            "template": {"spec": {"replicatedJobs": [{"name": _NODE, "replicas": 1, "template": template}]}},
        },
    }


def _train_job(
    values: Kubernetes, metadata: Mapping[str, Any], trainer: Mapping[str, Any], files: Sequence[str]
) -> dict[str, Any]:
    pod = {"containers": [_container(files)], **_volumes(values, metadata["name"], files)}
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


def _container(files: Sequence[str], **more: Any) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = [
        {"name": "data", "mountPath": "/data", "readOnly": True},
        {"name": "runs", "mountPath": "/runs"},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
        *([{"name": "files", "mountPath": FOLDER}] if files else []),
    ]
    return {"name": _NODE, **more, "volumeMounts": mounts}


def _volumes(values: Kubernetes, name: str, files: Sequence[str]) -> dict[str, Any]:
    items = [{"key": f"file-{number}", "path": path} for number, path in enumerate(files)]
    return {
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": values.data}},
            {"name": "runs", "persistentVolumeClaim": {"claimName": values.runs}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": values.shared_memory}},
            *([{"name": "files", "configMap": {"name": name, "items": items}}] if files else []),
        ]
    }
