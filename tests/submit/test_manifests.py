"""The YAML of SkyPilot and Kubernetes, checked by their own loaders and schemas."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from launcher.cli import main as cli
from tests.commands import refused

from .conftest import Submit, program, types_accept, validate

BUCKETS = ["submit.runs=s3://mine/runs", "submit.data=s3://mine/imagenet", "dataset.path=/data"]
# note: SkyPilot pins its dependencies, so scripts/setup_tests.sh installs it into a separate environment
SKY_PYTHON = Path(sys.prefix) / "skypilot" / "bin" / "python"
LOAD = """
import sys
from sky import Task
task = Task.from_yaml(sys.argv[1])
every = sorted(task.resources, key=lambda one: str(one.cloud))
print([(one.infra.to_str(), one.use_spot, one.accelerators, one.max_hourly_cost) for one in every])
print(task.num_nodes, sorted(task.storage_mounts))
"""


def test_a_sky_task_requests_the_gpus_of_the_hardware(submit: Submit) -> None:
    shown = submit("sky", "recipe=hot", *BUCKETS)
    assert "# to submit it: sky jobs launch FILE, in a checkout of train, which the job copies\n" in shown
    task = yaml.safe_load(shown)
    assert task["resources"]["accelerators"] == "A100:8"
    assert task["resources"]["use_spot"] is True
    assert task["file_mounts"]["/runs"] == {"source": "s3://mine/runs", "mode": "MOUNT_CACHED"}
    driver, *_, python, installed, setup = task["setup"].splitlines()
    assert driver.startswith("driver=$(nvidia-smi ")
    assert python.endswith("uv"), "of its own, since SkyPilot's machines have Python 3.10"
    assert installed.endswith("python install --quiet 3.12")
    assert (task["workdir"], setup.partition(") ")[2]) == (".", "make setup")
    assert 'exec .venv/bin/train "${words[@]}"' in task["run"]
    mirrored = yaml.safe_load(submit("sky", "recipe=hot", *BUCKETS, "checkpoint.mirror=gs://mine/runs"))
    assert mirrored["setup"] == f"{task['setup']}.venv/bin/python -m pip install gcsfs\n"
    assert task["resources"]["disk_size"] == 512
    files = yaml.safe_load(submit("sky", "recipe=hot", *BUCKETS, "dataloader=ffcv"))
    assert files["resources"]["disk_size"] == 512 + 392, "the files that the run writes first"


@pytest.mark.parametrize(("driver", "code"), [("580.65.06", 0), ("535.1", 1), ("", 1)])
def test_the_setup_of_a_sky_task_looks_at_the_driver_first(
    submit: Submit, tmp_path: Path, driver: str, code: int
) -> None:
    setup = yaml.safe_load(submit("sky", "recipe=hot", *BUCKETS))["setup"]
    for name, text in (("nvidia-smi", f"echo {driver}"), ("python3", "exit 0"), ("make", 'echo "$PYTHON"')):
        program(tmp_path / name, text)
    (tmp_path / "uv").mkdir()
    program(tmp_path / "uv" / "bin" / "uv", 'if [ "$2" = find ]; then echo /own/python; fi')
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", setup], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "" if code else "/own/python\n")
    assert ("is older than 580" in done.stderr) == bool(code)


def test_a_sky_task_with_an_image_has_no_setup(submit: Submit) -> None:
    words = ["recipe=hot", "submit.image=me/train:1", "submit.spot=false", "submit.infra=aws"]
    task = yaml.safe_load(submit("sky", *words))
    assert task["resources"]["image_id"] == "docker:me/train:1"
    assert task["resources"]["infra"] == "aws"
    assert not {"workdir", "setup", "file_mounts"} & set(task)
    assert 'exec train "${words[@]}"' in task["run"]


def test_a_sky_task_without_an_image_needs_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "it is not a checkout" in refused("submit", "--sky", "recipe=hot", *BUCKETS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "[(None, True, {'A100': 8}, None)]\n1 ['/runs']\n"),
        (
            ["launch.nnodes=2", "submit.infra=aws", "submit.max_hourly_cost=20"],
            "[('aws', True, {'A100': 8}, 20.0)]\n2 ['/runs']\n",
        ),
        (
            ["submit.infra=[aws/us-east-1,gcp]", "submit.max_hourly_cost=9.5", "submit.spot=false"],
            "[('aws/us-east-1', False, {'A100': 8}, 9.5), ('gcp', False, {'A100': 8}, 9.5)]\n1 ['/runs']\n",
        ),
    ],
)
def test_skypilot_loads_the_task(submit: Submit, tmp_path: Path, words: list[str], expected: str) -> None:
    if not SKY_PYTHON.exists():
        pytest.skip(f"skypilot is not installed in {SKY_PYTHON.parents[1]}; make setup-rest installs it")
    (tmp_path / "task.yaml").write_text(submit("sky", "recipe=hot", *words, *BUCKETS[::2]))
    environment = {**os.environ, "HOME": str(tmp_path)}
    command = [str(SKY_PYTHON), "-c", LOAD, "task.yaml"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_one_node_is_a_kubernetes_job(submit: Submit) -> None:
    manifest = yaml.safe_load(submit("kubernetes", "recipe=mild", "submit.image=me/train:1", "submit.retries=5"))
    assert (manifest["kind"], manifest["spec"]["backoffLimit"]) == ("Job", 5)
    assert manifest["spec"]["podFailurePolicy"]["rules"] == POLICY
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    most = {"requests": {"cpu": 86, "memory": "921Gi"}, "limits": {"nvidia.com/gpu": 8}}
    assert (container["image"], container["resources"]) == ("me/train:1", most)
    assert manifest["spec"]["template"]["spec"]["securityContext"] == {"fsGroup": 1000}
    validate(manifest)


POLICY = [
    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2]}},
    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
]


def test_several_nodes_are_a_trainjob_with_its_runtime(submit: Submit) -> None:
    shown = submit("kubernetes", "recipe=mild", "launch.nnodes=4", "submit.queue=gpus", "submit.retries=2")
    runtime, policy, job = yaml.safe_load_all(shown)
    validate(policy)
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": policy["spec"]["podSelector"]}]}]
    assert policy["spec"]["podSelector"]["matchLabels"] == {"jobset.sigs.k8s.io/jobset-name": job["metadata"]["name"]}
    types_accept(runtime)
    types_accept(job)
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "gpus"}
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    spec = node["template"]["spec"]
    assert (spec["backoffLimit"], spec["podFailurePolicy"]) == (8, {"rules": POLICY})
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["resourcesPerNode"]["limits"]) == (4, {"nvidia.com/gpu": 8})
    assert "*id" not in shown, "each value is written out"
    assert 'launch.nnodes=4 launch.rdzv="$PET_MASTER_ADDR:$PET_MASTER_PORT"' in trainer["command"][2]
    (patch,) = job["spec"]["runtimePatches"]
    (patched,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    # note: the runtime with its patches is a pod of Kubernetes
    pod = {**node["template"]["spec"]["template"]["spec"], **patched["template"]["spec"]["template"]["spec"]}
    start = {key: trainer[key] for key in ("image", "command")}
    pod["containers"] = [{**pod["containers"][0], **start, "resources": trainer["resourcesPerNode"]}]
    template = {**node["template"]["spec"], "template": {"spec": pod}}
    validate({"apiVersion": "batch/v1", "kind": "Job", "metadata": job["metadata"], "spec": template})
    assert {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]} == {"/data", "/runs", "/dev/shm"}


@pytest.mark.parametrize("nodes", [1, 4])
def test_a_jobset_needs_no_kubeflow(submit: Submit, nodes: int) -> None:
    shown = submit("kubernetes", "recipe=mild", f"launch.nnodes={nodes}", "submit.kind=JobSet")
    *policies, manifest = yaml.safe_load_all(shown)
    assert [policy["kind"] for policy in policies] == ["NetworkPolicy"] * (nodes > 1)
    types_accept(manifest)
    (node,) = manifest["spec"]["replicatedJobs"]
    spec, name = node["template"]["spec"], manifest["metadata"]["name"]
    assert (spec["parallelism"], spec["podFailurePolicy"]["rules"]) == (nodes, POLICY)
    (container,) = spec["template"]["spec"]["containers"]
    assert (f'launch.rdzv="{name}-node-0-0.{name}:29400"' in container["command"][2]) is (nodes > 1)
    validate({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec})


def test_one_node_can_be_a_trainjob_and_several_cannot_be_a_job(submit: Submit) -> None:
    shown = submit("kubernetes", "recipe=mild", "run_name=mine", "submit.kind=TrainJob")
    _, job = yaml.safe_load_all(shown)
    types_accept(job)
    assert "launch.rdzv" not in job["spec"]["trainer"]["command"][2]
    error = refused("submit", "--kubernetes", "recipe=mild", "launch.nnodes=2", "submit.kind=Job")
    assert "submit.kind=Job: runs one node, not launch.nnodes=2; set submit.kind=TrainJob" in error


def test_an_image_without_a_registry_has_a_note(capfd: pytest.CaptureFixture[str]) -> None:
    for image, noted in (("train:latest", True), ("me/train:1", False), ("ghcr.io/me/train:1", False)):
        assert cli.main(["submit", "--kubernetes", "recipe=mild", f"submit.image={image}"]) == 0
        assert ("note: submit.image=train:latest names no registry" in capfd.readouterr().err) == noted


def test_a_run_on_the_cpu_requests_no_gpu(submit: Submit) -> None:
    manifest = yaml.safe_load(submit("kubernetes", "recipe=mild", "launch=cpu", "run_name=My_Run"))
    assert manifest["metadata"]["name"] == "my-run"
    assert "resources" not in manifest["spec"]["template"]["spec"]["containers"][0]
    validate(manifest)


MORE = [
    "submit.env={NCCL_DEBUG: INFO, N: 2}", "submit.secrets=[wandb]", "submit.namespace=vision",
    "submit.container={resources: {requests: {cpu: 16, memory: 128Gi}}}",
    "submit.pod={nodeSelector: {gpu: a100}, imagePullSecrets: [{name: hub}], securityContext: {fsGroup: 1000}}",
    "submit.pod.priorityClassName=high", "submit.pod.volumes=[{name: scratch, emptyDir: {}}]",
]  # fmt: skip


@pytest.mark.parametrize("nodes", [1, 2])
def test_more_of_the_pod_is_merged_last(submit: Submit, nodes: int) -> None:
    shown = submit("kubernetes", "recipe=mild", "run_name=mine", f"launch.nnodes={nodes}", *MORE)
    assert "kubectl logs --namespace vision --follow" in shown
    documents = list(yaml.safe_load_all(shown))
    assert {one["metadata"]["namespace"] for one in documents} == {"vision"}
    job = documents[-1]
    if nodes == 1:
        validate(job)
        pod, resources = job["spec"]["template"]["spec"], None
    else:
        for one in (documents[0], job):
            types_accept(one)
        (node,) = documents[0]["spec"]["template"]["spec"]["replicatedJobs"]
        pod, resources = node["template"]["spec"]["template"]["spec"], job["spec"]["trainer"]["resourcesPerNode"]
    (container,) = pod["containers"]
    assert container["env"] == [{"name": "NCCL_DEBUG", "value": "INFO"}, {"name": "N", "value": "2"}]
    assert container["envFrom"] == [{"secretRef": {"name": "wandb"}}]
    requested = {"limits": {"nvidia.com/gpu": 8}, "requests": {"cpu": 16, "memory": "128Gi"}}
    assert (resources or container["resources"]) == requested
    assert (pod["nodeSelector"], pod["priorityClassName"]) == ({"gpu": "a100"}, "high")
    assert (pod["imagePullSecrets"], pod["securityContext"]) == ([{"name": "hub"}], {"fsGroup": 1000})
    names = [volume["name"] for volume in pod["volumes"]]
    assert names == (["data", "runs", "shared-memory", "scratch"] if nodes == 1 else ["scratch"])


def test_a_sky_task_has_variables_and_names_of_secrets(submit: Submit) -> None:
    shown = submit("sky", "recipe=hot", *BUCKETS, "submit.env.NCCL_DEBUG=INFO", "submit.secrets=[WANDB_API_KEY]")
    task = yaml.safe_load(shown)
    assert (task["envs"], task["secrets"]) == ({"NCCL_DEBUG": "INFO"}, {"WANDB_API_KEY": None})
    assert "# to submit it: sky jobs launch --secret WANDB_API_KEY FILE" in shown


@pytest.mark.parametrize("kind", ["slurm", "sky", "kubernetes"])
def test_a_job_shows_no_credential(kind: str) -> None:
    words = ["recipe=hot", *(BUCKETS if kind == "sky" else [])]
    shown = refused("submit", f"--{kind}", *words, "submit.env.WANDB_API_KEY=hush")
    assert "submit.env.WANDB_API_KEY=*** (command line): is a credential by its name" in shown
    assert "hush" not in shown
    if kind == "kubernetes":
        shown = refused("submit", "--kubernetes", *words, "submit.container={env: [{name: HF_TOKEN, value: hush}]}")
        assert "submit.container.env=***" in shown
        assert "shows the credential HF_TOKEN in the job" in shown


@pytest.mark.parametrize("kind", ["Job", "JobSet", "TrainJob"])
def test_a_pod_has_the_volumes_and_the_time_to_save(submit: Submit, kind: str) -> None:
    words = ["submit.data=photos", "submit.runs=kept", "submit.shared_memory=8Gi", "submit.grace=45"]
    documents = list(yaml.safe_load_all(submit("kubernetes", "recipe=mild", f"submit.kind={kind}", *words)))
    spec = documents[-1]["spec"]
    if kind == "TrainJob":
        (patch,) = spec["runtimePatches"]
        (patched,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        (node,) = documents[0]["spec"]["template"]["spec"]["replicatedJobs"]
        pods = [one["template"]["spec"]["template"]["spec"] for one in (patched, node)]
    elif kind == "JobSet":
        pods = [spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]]
    else:
        pods = [spec["template"]["spec"]]
    assert pods[0]["volumes"] == [
        {"name": "data", "persistentVolumeClaim": {"claimName": "photos"}},
        {"name": "runs", "persistentVolumeClaim": {"claimName": "kept"}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
    ]
    assert pods[-1]["terminationGracePeriodSeconds"] == 45


def test_a_sky_task_has_the_values_that_are_set(submit: Submit) -> None:
    words = ["submit.restarts=7", "submit.disk=900", "submit.runs=s3://mine/kept", "submit.data=gs://mine/photos"]
    named = [BUCKETS[2], "submit.gpus={A100 40GB: A100-SXM}", "hardware.gpu=A100 40GB"]
    task = yaml.safe_load(submit("sky", "recipe=hot", *words, *named))
    resources = task["resources"]
    assert (resources["job_recovery"]["max_restarts_on_errors"], resources["disk_size"]) == (7, 900)
    assert resources["accelerators"] == "A100-SXM:8"
    assert task["file_mounts"]["/data"] == {"source": "gs://mine/photos", "mode": "COPY"}
    assert task["file_mounts"]["/runs"]["source"] == "s3://mine/kept"
