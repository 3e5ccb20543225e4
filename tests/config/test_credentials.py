"""Credentials are refused where a run would store them, and hidden wherever a text is printed."""

import json
from pathlib import Path

import pytest

from launcher.credentials import redacted
from launcher.errors import Problem, UserError, printable
from launcher.records.environment import write_environment
from tests.commands import execute, output_of, refused

HELD = "holds a credential, which the run folder would keep; remove it, and set "


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pw@host/x?y=1", "https://***@host/x?y=1"),
        ("https://hf_token@host/x", "https://***@host/x"),
        ("s3://AKIA:abc@bucket/x and s3://b:c@d", "s3://***@bucket/x and s3://***@d"),
        ("https://h/x?X-Amz-Signature=ab%2f&b=1", "https://h/x?X-Amz-Signature=***&b=1"),
        ("'https://h/x?sig=9&se=1'", "'https://h/x?sig=***&se=1'"),
        ("AWS_SECRET_ACCESS_KEY=abc/d+e HF_TOKEN=x", "AWS_SECRET_ACCESS_KEY=*** HF_TOKEN=***"),
        ("DB_PASSWORD=p, next", "DB_PASSWORD=***, next"),
        ("s3://AKIA:ab/cd@bucket/x and s3:/e:f@g", "s3://***@bucket/x and s3:/***@g"),
        ("HTTPS://user:p@q@host/x", "HTTPS://***@host/x"),
        ("https://h/x#access_token=ab https://h/x?key=ab", "https://h/x#access_token=*** https://h/x?key=***"),
        ("AWS_SECRET_ACCESS_KEY='a b' HF_TOKEN=\"c d\"", "AWS_SECRET_ACCESS_KEY=*** HF_TOKEN=***"),
        ("aws_secret_access_key=abc, --password=x", "aws_secret_access_key=***, --password=***"),
        ("GITHUB_PAT=x MY_PASS=y AccountKey=z==;", "GITHUB_PAT=*** MY_PASS=*** AccountKey=***;"),
        ("{'password': 'a b', \"api_key\": \"c\"}", "{'password': ***, \"api_key\": ***}"),
        ("WANDB_API_KEY: abc", "WANDB_API_KEY: ***"),
        ("Authorization: Bearer abc", "Authorization: Bearer ***"),
        ("x-api-key: abc", "x-api-key: ***"),
        ("wget --password hush https://h/x", "wget --password *** https://h/x"),
        ("x --token hush --api-key 'a b' --hf_token  c", "x --token *** --api-key *** --hf_token  ***"),
        ("curl -u me:hush https://h", "curl -u *** https://h"),
        ("curl --user=me:hush https://h", "curl --user=*** https://h"),
        ("launch.rdzv=me:hush@host:1", "launch.rdzv=***@host:1"),
        ("'me:hush@registry.io/train:1', a:b@c", "'***@registry.io/train:1', ***@c"),
        ("HF_TOKEN=$X PGPASSWORD=hush$", "HF_TOKEN=$X PGPASSWORD=***"),
    ],
)
def test_credentials_are_hidden(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert printable(text) == shown
    assert redacted(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "abfs://container@account.dfs.core.windows.net/images", "sftp://me@host/images", "a@b.org", "model.tokens=196",
        "submit.KEY=VALUE", "https://h/x?version=3", "s3://mine/runs", "key=value", "http://host:5000",
        "set AWS_ACCESS_KEY_ID and FSSPEC_HTTPS", "http://host:5000/a@b", "class_token=true", "unexpected token: x",
        "/data/sort_key=a/region_key=eu", "pad_token=x", "COMPASS=n",
        "me@host:/images", "git@host:me/code.git", "git@host:a:b", "train:1@sha256:0fab",
        "h:5000/me/train:1@sha256:0fab",
        "#SBATCH --signal=B:USR1@180",
        "hf-hub:timm/vit@v1", "wget --password $PASS", "x --token ${X} --secret=$(cat x)", "export HF_TOKEN=$(cat x)",
        "--class-token true", "--token-file x", "--pad-token x", "--token --other", "--token is not an option",
        "--user me", "2026-11-26T19:00:00",
        "sky jobs launch --secret WANDB_API_KEY FILE", "submit.secrets=[WANDB_API_KEY]",
    ],
)  # fmt: skip
def test_other_texts_stay(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize(
    ("words", "variable"),
    [
        (["dataset.path=s3://AKIA:hush@mine/images"], "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        (["dataset.path='https://host/a.tar?token=hush'"], "the environment variable FSSPEC_HTTPS, as JSON"),
        (["checkpoint.mirror=gs://me:hush@mine/runs", "run_name=a"], "GOOGLE_APPLICATION_CREDENTIALS"),
        (["dataset.path=me:hush@host:/images"], "an environment variable that your code reads"),
        (["logger=mlflow", "logger.uri=http://me:hush@host:5000"], "MLFLOW_TRACKING_USERNAME"),
    ],
)
@pytest.mark.parametrize("verb", [[], ["plan"], ["show"], ["submit", "--slurm"]], ids=lambda verb: " ".join(verb))
def test_a_run_does_not_store_a_credential(
    words: list[str], variable: str, verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output, errors = execute(*verb, "launch=cpu", *words)
    assert (code, output) == (2, "")
    assert HELD in errors
    assert variable in errors
    assert "hush" not in errors
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize(
    "word",
    [
        "submit.lines=['wget --password hush h']",
        "submit.lines=['HF_TOKEN=hush']",
        "submit.env.A=a:hush@h",
        "submit.lines=['x -u me:hush https://h']",
    ],
)
def test_a_job_does_not_store_a_credential(word: str) -> None:
    assert "remove it, and set it in your shell, or submit.secrets to names" in (
        shown := refused("submit", "--slurm", "launch.nproc=1", "launch=cpu", word)
    )
    assert "hush" not in shown.lower()


def test_the_job_reads_a_credential_from_a_variable_or_a_file() -> None:
    lines = '["export HF_TOKEN=$(cat x)", "wget --password $PASS h"]'
    shown = output_of("submit", "--slurm", "dataset=shapes", "launch=cpu", f"submit.lines={lines}")
    assert "export HF_TOKEN=$(cat x)\nwget --password $PASS h\n" in shown


@pytest.mark.parametrize("flag", ["--token", "--api-key", "--password"])
@pytest.mark.parametrize("verb", [(), ("plan",), ("resume",)])
def test_the_value_of_an_unknown_flag_is_hidden(verb: tuple[str, ...], flag: str) -> None:
    code, output, errors = execute(*verb, flag, "hush", "--epochz=1")
    assert code == 2
    assert f"{flag} is not an option of train" in errors
    assert "hush" not in output + errors


def test_a_key_that_is_a_credential_by_its_name_is_refused() -> None:
    shown = refused("show", "model=timm", "+model.arguments.api_key=hush")
    assert "model.arguments.api_key=*** (command line): is a credential by its name" in shown
    assert "api_key" in output_of("show", "model=timm", "+model.arguments.api_key=1")


def test_errors_and_the_record_of_the_command_hide_credentials(tmp_path: Path) -> None:
    problem = Problem("is not there: https://me:hush@host/x", "dataset.path", "s3://a:hush@b/c")
    assert str(UserError(problem)) == "dataset.path=s3://***@b/c: is not there: https://***@host/x"
    words = ["train", "dataset.path=s3://a:hush@b/c", "--hf-token", "hush", "epochs=1"]
    write_environment(tmp_path / "environment.json", words, [])
    shown = ["train", "dataset.path=s3://***@b/c", "--hf-token", "***", "epochs=1"]
    assert json.loads((tmp_path / "environment.json").read_text())["command"] == shown
