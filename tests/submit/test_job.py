"""The run of a job: its command, name, nodes and price; and jobs that are refused."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli import main as cli
from launcher.config.compose import compose
from launcher.submit.job import command, dns_name, make_job, stamped
from tests.commands import output_of, refused

from .conftest import Submit, program

BUCKET = "submit.runs=s3://mine/runs"
SKY = ["--sky", "recipe=hot", "dataset.path=/data"]


def printed(lines: str, folder: Path) -> list[str]:
    """Return the words that the bash lines of a job pass to `train`."""
    script = lines.replace("exec train", "printf '%s\\n'")
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[:-1]


def test_a_job_starts_the_run_once_and_then_resumes_it(tmp_path: Path) -> None:
    words = ["recipe=hot", "run_name='${recipe} a'", "runs=old", "algorithms=[ema,blurpool]"]
    job = make_job(compose(words).config, words)
    assert (job.name, job.named, job.nodes, job.gpus) == ("hot a", True, 1, 8)
    lines = command(job, "exec train", runs="new runs", run_name=shlex.quote(job.name), rdzv="none")
    first = ["recipe=hot", "algorithms=[ema,blurpool]", "runs=new runs", "run_name=hot a"]
    assert printed(lines, tmp_path) == first
    (tmp_path / "new runs" / "hot a").mkdir(parents=True)
    assert printed(lines, tmp_path) == first
    (tmp_path / "new runs" / "hot a" / "config.yaml").touch()
    assert printed(lines, tmp_path) == ["resume", "new runs/hot a"]
    assert f"export TRAIN_JOB={job.identity}\n" in lines


def test_only_the_same_words_of_the_same_user_are_the_same_job(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["recipe=hot", "run_name=mine"]
    jobs = [make_job(compose(changed).config, changed) for changed in (words, words, [*words, "epochs=30"])]
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    first, again, other, of_another = (job.identity for job in [*jobs, make_job(compose(words).config, words)])
    assert first == again
    assert len({first, other, of_another}) == 3


def test_several_nodes_run_the_same_command_each_time(tmp_path: Path) -> None:
    words = ["recipe=mild", "launch.nnodes=4", "launch.rdzv=old:1"]
    job = make_job(compose(words).config, words)
    lines = command(job, "exec train", runs="runs", run_name="mild", rdzv="first:29400")
    expected = ["recipe=mild", "runs=runs", "run_name=mild", "launch.nnodes=4", "launch.rdzv=first:29400"]
    assert printed(lines, tmp_path) == expected
    (tmp_path / "runs" / "mild").mkdir(parents=True)
    (tmp_path / "runs" / "mild" / "config.yaml").touch()
    assert printed(lines, tmp_path) == expected


@given(st.text(min_size=1, max_size=60))
def test_job_names_are_valid_on_clusters(name: str) -> None:
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", dns_name(name))
    assert len(dns_name(name)) <= 46


def test_a_run_name_of_the_user_gets_no_timestamp() -> None:
    named = make_job(compose(["recipe=hot", "run_name=mine"]).config, [])
    assert stamped(named) == "mine"
    assert re.fullmatch(r"hot-imagenet-\d{4}-\d{6}", stamped(make_job(compose(["recipe=hot"]).config, [])))


def test_the_price_is_for_all_nodes(submit: Submit) -> None:
    shown = submit("slurm", "recipe=hot", "hardware=p4d_24xlarge", "launch.nnodes=2")
    assert "43.92 USD an hour for 2 x p4d_24xlarge (AWS on-demand list price, us-east-1" in shown
    assert "unknown price" in submit("slurm", "recipe=none", "dataset=imagenet", "launch.nproc=2")


@pytest.mark.parametrize("kind", ["slurm", "kubernetes"])
def test_a_job_on_gpus_has_the_driver_that_torch_needs(submit: Submit, kind: str) -> None:
    assert "\n# its nodes need NVIDIA's driver 580 or newer\n" in submit(kind, "recipe=hot")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--slurm", "recipe=warm"], "no such recipe"),
        (["--slurm", "recipe=hot", "batch_size=2047"], "not divisible"),
        (["--slurm", "recipe=hot", "submit.tme=1"], "did you mean submit.time?"),
        (["--slurm", "recipe=hot", "submit.time=8h"], "such as 08:00:00"),
        (["--slurm", "recipe=hot", "submit.save_before_end=-1"], "submit.save_before_end=-1"),
        (["--slurm", "recipe=hot", "submit.time=3"], "submit.save_before_end=180: must be less than submit.time=3"),
        (["--slurm", "recipe=hot", "submit.time=2:59"], "must be less than submit.time=2:59"),
        (["--slurm", "recipe=hot", "submit.time=0-1", "submit.save_before_end=3600"], "less than submit.time=0-1"),
        (["--slurm", "recipe=hot", "submit.partition='a\n#SBATCH --exclusive'"], "must be one line"),
        (["--slurm", "dataset=shapes"], "launch.nproc=8"),
        (SKY, "submit.runs=s3://BUCKET/runs"),
        ([*SKY, "hardware=this_machine", "launch.nproc=1", BUCKET], "hardware.gpu=null"),
        (["--sky", "recipe=hot", BUCKET], "dataset.path=null: missing; set dataset.path=/data/imagenet"),
        (["--slurm", "recipe=hot", "checkpoint.mirror=nowhere://x"], "Protocol not known: nowhere"),
        *((["--slurm", "recipe=hot", f"submit.env={text}"], "submit.env") for text in ("[NAME]", "NAME", "3")),
        (
            ["--slurm", "recipe=hot", "submit.env=[A]", "submit.env.B=1"],
            "error: submit.env=['A'] (command line): must be a mapping, since submit.env.B is set; omit one of them\n",
        ),
        (["--slurm", "recipe=hot", "submit.mail-type=END"], "#SBATCH --mail-type=END"),
        (["--slurm", "recipe=hot", "submit.nodelist=[a,b]"], "#SBATCH --nodelist=VALUE"),
        (["--kubernetes", "recipe=hot", "submit.container={resources: a}"], "must be a mapping such as {limits: "),
        (["--kubernetes", "recipe=hot", "submit.shared_memory=lots"], "such as 64Gi"),
    ],
)
def test_a_job_that_cannot_work_is_refused(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["submit", *words]) == 2
    shown = capsys.readouterr()
    assert expected in shown.err
    assert not shown.out


def test_a_job_needs_the_path_of_its_images(submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the config, its variables, or a program of its own, whose variables are not known."""
    monkeypatch.delenv("TRAIN_DATA")
    job = ["recipe=hot", "dataset=imagenet"]
    assert "dataset.path=null: missing; set dataset.path=/data/imagenet" in refused("submit", "--slurm", *job)
    for word in ("env.TRAIN_DATA=/data", "lines=['export TRAIN_DATA=/data']", "program=/opt/train"):
        assert submit("slurm", *job, f"submit.{word}")


@pytest.mark.parametrize("kind", ["slurm", "sky", "kubernetes"])
def test_run_passes_the_job_to_the_submitting_program(
    kind: str, submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["recipe=hot", "run_name=mine", *([BUCKET, *SKY[2:]] if kind == "sky" else [])]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "is not installed; omit --run" in refused("submit", f"--{kind}", "--run", *words)
    name = {"slurm": "sbatch", "sky": "sky", "kubernetes": "kubectl"}[kind]
    program(tmp_path / name, f'for last; do :; done\n/bin/cat "$last" > {tmp_path}/script\nexit 3')
    assert cli.main(["submit", f"--{kind}", "--run", *words]) == 3
    assert (tmp_path / "script").read_text() == submit(kind, *words)


SELECTOR = "--selector=jobset.sigs.k8s.io/jobset-name=mine,batch.kubernetes.io/job-completion-index=0"


@pytest.mark.parametrize(
    ("kind", "name", "words", "calls", "follow"),
    [
        ("slurm", "sbatch", [], ["job.sh"], "tail -F mine-41.log"),
        ("sky", "sky", [BUCKET, *SKY[2:]], ["jobs launch --yes --detach-run job.yaml"], "sky jobs logs --name mine"),
        ("kubernetes", "kubectl", [], ["create --filename job.yaml"], "kubectl logs --follow job/mine"),
        ("kubernetes", "kubectl", ["launch.nnodes=2"],
         [*["apply --filename job.yaml"] * 2, "create --filename job.yaml"],
         f"kubectl logs --follow --tail=-1 {SELECTOR}"),
    ],
)  # fmt: skip
def test_a_submitted_job_prints_its_number_and_how_to_follow_its_log(
    kind: str,
    name: str,
    words: list[str],
    calls: list[str],
    follow: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = ["recipe=hot", "run_name=mine", *words]
    printed = output_of("submit", f"--{kind}", *words)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    lines = [f"cd {tmp_path}", 'echo "${@##*/}" >> calls', 'cat "${!#}" >> submitted', "echo Submitted batch job 41"]
    program(tmp_path / name, "\n".join(lines), "bash")
    assert cli.main(["submit", f"--{kind}", "--run", *words]) == 0
    output = capfd.readouterr().out.splitlines()
    assert output == [*["Submitted batch job 41"] * len(calls), f"to follow its log: {follow}"]
    assert (tmp_path / "calls").read_text().splitlines() == calls
    assert (tmp_path / "submitted").read_text() == printed.replace("\n---\n", "")
    assert f"# to follow its log: {follow.replace('41', 'NUMBER')}" in printed.splitlines()
