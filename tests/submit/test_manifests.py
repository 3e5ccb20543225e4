"""The YAML of SkyPilot and Kubernetes, held against their own loaders and schemas."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import Submit

BUCKETS = ["submit.runs=s3://mine/runs", "submit.data=s3://mine/imagenet"]
# note: SkyPilot is large and has pins of its own; its Python may be another one
SKY_PYTHON = os.environ.get("SKYPILOT_PYTHON", sys.executable)
LOAD = """
import sys
from sky import Task
task = Task.from_yaml(sys.argv[1])
(resources,) = task.resources
print(task.num_nodes, resources.use_spot, resources.accelerators, sorted(task.storage_mounts))
"""


def test_a_sky_task_requests_the_gpus_of_the_hardware(submit: Submit) -> None:
    task = yaml.safe_load(submit("sky", "recipe=hot", *BUCKETS))
    assert task["resources"]["accelerators"] == "A100:8"
    assert task["resources"]["use_spot"] is True
    assert task["file_mounts"]["/runs"] == {"source": "s3://mine/runs", "mode": "MOUNT_CACHED"}
    assert (task["workdir"], task["setup"]) == (".", "make setup\n")
    assert 'exec .venv/bin/train "${words[@]}"' in task["run"]


def test_a_sky_task_with_an_image_has_no_setup(submit: Submit) -> None:
    task = yaml.safe_load(
        submit("sky", "recipe=hot", "submit.image=me/train:1", "submit.spot=false", "submit.cloud=aws")
    )
    assert task["resources"]["image_id"] == "docker:me/train:1"
    assert task["resources"]["cloud"] == "aws"
    assert not {"workdir", "setup", "file_mounts"} & set(task)
    assert 'exec train "${words[@]}"' in task["run"]


@pytest.mark.parametrize(("words", "nodes"), [([], 1), (["launch.nnodes=2", "submit.cloud=aws"], 2)])
def test_skypilot_loads_the_task(submit: Submit, tmp_path: Path, words: list[str], nodes: int) -> None:
    if subprocess.run([SKY_PYTHON, "-c", "import sky"], capture_output=True, check=False).returncode:
        pytest.skip("skypilot is not installed (SKYPILOT_PYTHON may name a Python that has it)")
    (tmp_path / "task.yaml").write_text(submit("sky", "recipe=hot", *words, "submit.runs=s3://mine/runs"))
    environment = {**os.environ, "HOME": str(tmp_path)}
    command = [SKY_PYTHON, "-c", LOAD, "task.yaml"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{nodes} True {{'A100': 8}} ['/runs']"


def validate(manifest: dict[str, Any]) -> None:
    schema = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    schema.validate(manifest, "1.31", strict=True)


def test_one_node_is_a_kubernetes_job(submit: Submit) -> None:
    manifest = yaml.safe_load(submit("kubernetes", "recipe=mild", "submit.image=me/train:1", "submit.retries=5"))
    assert (manifest["kind"], manifest["spec"]["backoffLimit"]) == ("Job", 5)
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["resources"]["limits"]) == ("me/train:1", {"nvidia.com/gpu": 8})
    validate(manifest)


def test_several_nodes_are_a_pytorchjob(submit: Submit) -> None:
    manifest = yaml.safe_load(submit("kubernetes", "recipe=mild", "launch.nnodes=4"))
    name, replicas = manifest["metadata"]["name"], manifest["spec"]["pytorchReplicaSpecs"]
    assert {role: part["replicas"] for role, part in replicas.items()} == {"Master": 1, "Worker": 3}
    for part in replicas.values():
        (container,) = part["template"]["spec"]["containers"]
        assert f"launch.nnodes=4 launch.rdzv={name}-master-0:29400" in container["command"][2]
        validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, **part["template"]})


def test_the_types_of_the_training_operator_accept_the_manifest(submit: Submit) -> None:
    kubeflow = pytest.importorskip("kubeflow.training", reason="kubeflow-training is not installed")
    manifest = yaml.safe_load(submit("kubernetes", "recipe=mild", "launch.nnodes=2"))
    job = kubeflow.ApiClient()._ApiClient__deserialize(manifest, "KubeflowOrgV1PyTorchJob")
    back = kubeflow.ApiClient().sanitize_for_serialization(job)
    for part in (*manifest["spec"]["pytorchReplicaSpecs"].values(), *back["spec"]["pytorchReplicaSpecs"].values()):
        limits = part["template"]["spec"]["containers"][0]["resources"]["limits"]
        limits["nvidia.com/gpu"] = str(limits["nvidia.com/gpu"])
    # note: what its types do not know is lost on the way
    assert back == manifest


def test_a_run_on_the_cpu_requests_no_gpu(submit: Submit) -> None:
    manifest = yaml.safe_load(submit("kubernetes", "launch=cpu", "run_name=My_Run"))
    assert manifest["metadata"]["name"] == "my-run"
    assert "resources" not in manifest["spec"]["template"]["spec"]["containers"][0]
    validate(manifest)
