"""Words that a newcomer types: each works if its meaning is clear, or its error shows the line to type."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from launcher import __version__
from launcher.cli import main as cli
from launcher.cli.words import read, takes_keys
from launcher.config.compose import compose
from launcher.config.keys import all_keys, nearest_key, synonyms
from launcher.config.overrides import parse
from launcher.errors import CLOSED_PIPE, Problems, UserError
from tests.commands import execute, output_of

MINE = {"defaults": ["hot", "_self_"], "epochs": 33}
VERBS_WITH_KEYS = [verb for verb in cli.VERBS if takes_keys(cli.parser_of(verb, cli.module_of(verb)))]
FIRST = {
    "resume": ["runs/a"],
    "eval": ["runs/a"],
    "submit": ["--slurm"],
}


def read_as(verb: str, *words: str) -> list[str]:
    arguments = read(verb, words, cli.parsers())
    return list(vars(arguments).get("overrides", vars(arguments).get("words")))


def refused(*words: str) -> str:
    with pytest.raises(UserError) as caught:
        read_as("run", *words)
    return str(caught.value)


@pytest.fixture
def own_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a recipe file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(MINE))
    return tmp_path


@pytest.mark.parametrize("verb", VERBS_WITH_KEYS)
def test_every_verb_with_keys_accepts_them_in_every_form(verb: str) -> None:
    for line in (
        "hot --epochs 240",
        "--recipe hot --epochs=240",
        "recipe = hot epochs =240",
        "recipe= hot epochs= 240",
    ):
        assert read_as(verb, *FIRST.get(verb, []), *line.split()) == ["recipe=hot", "epochs=240"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--batch-size 64", ["batch_size=64"]),
        ("--optimizer.lr 1e-3 --optimizer sgd", ["optimizer.lr=1e-3", "optimizer=sgd"]),
        ("--deterministic hot", ["deterministic=true", "recipe=hot"]),
        ("--deterministic false", ["deterministic=false"]),
        ("--algorithms.mixup --algorithms.ema off", ["algorithms.mixup=on", "algorithms.ema=off"]),
        ("--algorithms.augmix.depth -1", ["algorithms.augmix.depth=-1"]),
        ("--dataset.path '/data/a b'", ["dataset.path=/data/a b"]),
        ("-epochs 3", ["epochs=3"]),
        ("mine.yaml ./mine.yaml", ["recipe=mine.yaml", "recipe=./mine.yaml"]),
        ("--config-dir a --config-dir='b c'", ["hydra.searchpath=['a']", "hydra.searchpath=['b c']"]),
        ("~algorithms.mixup +epochs=3", ["~algorithms.mixup", "+epochs=3"]),
        ("-- run_name=a", ["run_name=a"]),
    ],
)
def test_flags_and_bare_names_become_key_value_words(own_recipe: Path, line: str, words: list[str]) -> None:
    assert read_as("run", *shlex.split(line)) == words


def test_every_key_has_a_flag() -> None:
    for key in all_keys():
        assert read_as("run", f"--{key.replace('_', '-')}=3", f"--{key}=4") == [f"{key}=3", f"{key}=4"]


def test_options_of_a_verb_may_be_anywhere_on_the_line() -> None:
    arguments = read("estimate", ["hot", "--seconds", "3", "--epochs", "9", "--json"], cli.parsers())
    assert (arguments.overrides, arguments.seconds, arguments.json) == (["recipe=hot", "epochs=9"], 3.0, True)


def test_a_path_is_a_recipe(own_recipe: Path) -> None:
    config = compose(["recipe=./mine.yaml"]).config
    assert (config.recipe, config.epochs) == ("mine", 33)
    assert compose([f"recipe={own_recipe}/mine.yaml"]).config == config
    assert compose(["recipe=hot.yaml"]).config == compose(["recipe=hot"]).config
    (own_recipe / "hot.yaml").write_text(yaml.safe_dump(MINE))
    assert compose(["recipe=./hot.yaml"]).config.recipe == f"{own_recipe.name}-hot"
    with pytest.raises(UserError, match=r"recipe=./nope.yaml .*no such file"):
        compose(["recipe=./nope.yaml"])


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("speedrun track=78.1", "type train curve recipe=mild seed=0,1,2,3,4, then train compare RUNS"),
        ("calibrate runs/a", "type train eval RUN, which prints the calibration error"),
        ("operating_point runs/a", "thresholds of classes are gone since version 0.3"),
        ("eval runs/a --corruptions", "type train eval RUN dataset.path=/data/imagenet-c/fog/3"),
        ("imagenet-c runs/a", "type train eval RUN dataset.path=/data/imagenet-c/fog/3"),
        ("cleanlab data", "writes predictions out of fold; suspected labels are gone since version 0.3"),
        ("eval runs/a --by-class --cam", "type train look --cam RUN"),
        ("eval runs/a --ema-length 0.05", "and lengths after it are gone since version 0.3"),
        ("hot algorithms.ema.snapshots=0.05dur", "and lengths after it are gone since version 0.3"),
        ("hot algorithms.label_smoothing.smoothing=[0.1,0.2]", "must be a number"),
        ("lr-find hot", "type train curve 'optimizer.lr=interval(0.1,1)' trials=8"),
        (
            "relabel runs/a",
            "type algorithms.distillation=on algorithms.distillation.teacher=RUN; stored labels are gone",
        ),
        ("algorithms.stored_labels=on", "type algorithms.distillation=on"),
        ("algorithms.stored_labels.path=a", "type algorithms.distillation=on"),
        ("dataloader.decode=gpu", "omit it; decoding crops alone, or on the GPU, is gone since version 0.3"),
        ("dataloader.decoder=opencv", "must be one of auto, simplejpeg, pillow"),
        ("plan hot --on all --prices sky", "gone since version 0.3; set hardware.price_per_hour=2.5"),
        ("plan hot --on all --image a.png", "must be a mapping of values; type image.KEY=VALUE, see train help image"),
        ("hot algorithms.sample_dropping=on", "omit it; sample dropping is gone since version 0.3"),
        ("hot nonfinite.policy=rollback", "must be one of skip, stop"),
        ("hot nonfinite.lr_factor=0.3", "rollback is gone since version 0.3; type nonfinite.policy=skip or stop"),
        ("auto dataset=shapes budget=5min", "no such key; type stop.minutes=5, which trains the epochs that fit"),
        ("plan hot --on all budget=25usd", "or train plan --budget 25usd"),
        ("replay runs/a step=3", "replay is gone since version 0.3, and metrics.jsonl has the samples of steps"),
        ("diagnose hot", "type train estimate, which prints the bottleneck and what to change"),
        ("hot heartbeat=run.json", "no such key; type logger=prometheus, which writes metrics.prom"),
        ("hot logger=trackio", "no such logger; one of: jsonl, mlflow"),
    ],
)
def test_what_earlier_versions_had_is_refused_in_one_line(line: str, instead: str) -> None:
    code, _, shown = execute(*shlex.split(line))
    assert (code, shown.count("\n")) == (2, 1)
    assert instead in shown


@pytest.mark.parametrize(
    ("line", "correction"),
    [
        ("plann hot", "did you mean train plan hot?"),
        ("hto epochs=3", "did you mean train recipe=hot epochs=3?"),
        ("hot plan", "did you mean train plan hot?"),
        ("hot --dry-run", "did you mean train plan hot?"),
        ("-m recipe=hot,mild", "did you mean train curve recipe=hot,mild?"),
        ("--config x.yaml epochs=3", "did you mean train recipe=x.yaml epochs=3?"),
        ("-q hot", "did you mean train hot > run.log?"),
        ("--epoch 240 hot", "did you mean train epochs=240 hot?"),
        ("--lr 0.1", "did you mean train optimizer.lr=0.1?"),
        ("--resume runs/a", "did you mean train resume runs/a?"),
        ("epochs 240", "did you mean train epochs=240?"),
        ("--epochs", "--epochs needs a value"),
        ("trainn recipe=hot", "did you mean train run recipe=hot?"),
        ("evaluate runs/a", "did you mean train eval runs/a?"),
        ("imgsz 640 hot", "did you mean train image.train_size=640 hot?"),
        ("-b 64 hot", "did you mean train batch_size=64 hot?"),
        ("--model-ema hot", "did you mean train algorithms.ema=on hot?"),
        ("--config-name mine --cfg job", "did you mean train show recipe=mine?"),
        ("--cfg job --config-name mine", "did you mean train show recipe=mine?"),
        ("--cfg job", "did you mean train show?"),
        ("hot -q --epoch 3", "did you mean train hot epochs=3 > run.log?"),
        ("--epoch 3 --seed 3 frobnicate", "did you mean epochs=3?"),
        ("--seed 3 --epoch 3 --lr 3", "did you mean train --seed 3 epochs=3 optimizer.lr=3?"),
        ("frobnicate", "frobnicate is neither a verb nor key=value"),
        ("''", "'' is neither a verb"),
    ],
)
def test_a_wrong_word_is_refused_with_the_corrected_line(line: str, correction: str) -> None:
    error = refused(*shlex.split(line))
    assert correction in error
    assert shlex.split(line)[0] in error or not shlex.split(line)[0]


@pytest.mark.parametrize(
    ("word", "correction"),
    [("mixup=of", "algorithms.mixup=off"), ("sam=true", "algorithms.sam=on"), ("algorithms.mixup=of", "mean off")],
)
def test_an_algorithm_without_its_prefix_is_refused_with_the_full_key(word: str, correction: str) -> None:
    with pytest.raises(UserError, match=f"{word} .*did you .*{correction}"):
        compose([word])
    problems = Problems()
    parse([word], problems)
    assert problems == []


@pytest.mark.parametrize(
    "word",
    ["recipe=airbench94", "model=airbench", "algorithms=[lookahead]", "algorithms.bias_scaling.factor=64",
     "algorithms.translation=on"],
)  # fmt: skip
def test_what_became_an_example_is_refused_with_its_folder(word: str) -> None:
    with pytest.raises(
        UserError, match=r"no such (recipe|model|algorithm); type .* in a copy of examples/airbench of the source"
    ):
        compose([word])
    assert "type recipe=airbench96 in a copy of examples/airbench of the source" in refused("airbench96")


def test_every_word_of_another_tool_leads_to_a_verb_or_key() -> None:
    verbs, keys = synonyms("verbs"), synonyms("keys")
    assert {*verbs.values()} <= {*cli.VERBS}
    assert {*keys.values()} <= {*all_keys()}
    assert not {*verbs} & {*cli.VERBS}
    assert not {*keys} & {*all_keys()}
    assert {word: nearest_key(word) for word in keys} == keys


@pytest.mark.parametrize(("word", "verb"), [("deploy", "export"), ("gradcam", "look")])
def test_a_verb_of_another_tool_typed_as_a_key_leads_to_the_verb(word: str, verb: str) -> None:
    with pytest.raises(UserError, match=f"^{word}=on .command line.: no such key; did you mean train {verb}\\?$"):
        compose([f"{word}=on"])


@pytest.mark.parametrize(
    "word",
    [
        *("bananas", "patience_is_a_virtue", "frobnicate", "crops"),
        *("stop.max_steps", "max_memory", "debug"),
    ],
)
def test_a_word_similar_to_no_key_gets_no_suggestion(word: str) -> None:
    with pytest.raises(UserError, match=f"^{word}=1 .command line.: no such key$"):
        compose([f"{word}=1"])


def test_each_key_of_an_unknown_section_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        compose(["+trainer.max_epochs=3", "trainer.loops=2", "foo.bar={a: 1}"])
    assert sorted(str(caught.value).splitlines()) == [
        "foo.bar.a=1 (command line): no such key",
        "trainer.loops=2 (command line): no such key",
        "trainer.max_epochs=3 (command line): no such key; did you mean epochs?",
    ]


def test_all_wrong_words_are_reported_at_once() -> None:
    assert len(refused("epochs=3", "frobnicate", "-q", "--epoch", "3").splitlines()) == 3


@pytest.mark.parametrize("words", [["--version"], ["-V"], ["version"]])
def test_the_version_is_printed(words: list[str]) -> None:
    assert output_of(*words) == f"train {__version__}\n"


def test_every_spelling_of_help_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["plan", "--help"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: train plan")
    assert printed == output_of("plan", "help") == output_of("help", "plan")
    for words in (["--help"], ["help"]):
        assert "  plan       show what a run will do" in output_of(*words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["compare", "--axiss", "time"], "is not an option of train compare; did you mean train compare --axis time?"),
        (["compare", "--axis", "tme"], "'tme'"),
        (["diff", "hot"], "B"),
        (["eval", ""], "'' is not a run folder: it has no config.yaml; pass one such as runs/"),
        (["diff", "hot", "runs/nope"], "runs/nope is not a run folder: it has no config.yaml; pass one such as runs/"),
        (["estimate", "--seconds", "soon"], "'soon'"),
        (["submit", "hot"], "--slurm --sky --kubernetes"),
    ],
)
def test_errors_in_the_options_of_a_verb_are_one_line(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert expected in error


def test_windows_is_refused_with_one_line() -> None:
    program = "import runpy, sys; sys.platform = 'win32'; runpy.run_module('launcher', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: train needs Linux or macOS; on Windows use it in WSL 2\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_that_cannot_be_written_is_one_error_or_none() -> None:
    show = [sys.executable, "-m", "launcher", "show", "recipe=hot"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(show, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "error: standard output: No space left on device; free some space, or choose another disk\n",
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(show, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (CLOSED_PIPE, "")


def test_words_for_a_limit_of_time_suggest_the_key() -> None:
    for word in ("stop.max_time", "max_time"):
        with pytest.raises(UserError, match=r"did you mean stop\.minutes(=1)?\?"):
            compose([f"{word}=1"])
