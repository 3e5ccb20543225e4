"""A user's own recipes and options: files in ./recipes, ./conf or a --config-dir, as in any Hydra application."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from launcher.cli import main as cli
from launcher.config.compose import Composed, compose
from launcher.config.groups import machines, options, values
from launcher.errors import UserError
from tests.commands import output_of, refused


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def own(path: str, text: str) -> None:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def composed(*words: str) -> Composed:
    return compose([*words, "dataset=shapes"])


def test_an_own_model() -> None:
    own("conf/model/mine.yaml", "defaults: [resnet50, _self_]\nactivation: silu\n")
    model = composed("recipe=hot", "model=mine").config.model
    assert (model.name, model.activation, model.architecture) == ("resnet50", "silu", "resnet50")


def test_the_values_of_an_own_option_have_it_as_their_origin() -> None:
    own("conf/model/mine.yaml", "defaults: [resnet50, _self_]\nactivation: silu\n")
    own("conf/model/wrong.yaml", "defaults: [resnet50, _self_]\nactivation: mish\nbatchnorm_scale: 2.0\n")
    own("recipes/short.yaml", "defaults: [hot, override model: mine, _self_]\nepochs: 77\n")
    for word in ("model=mine", "recipe=short"):
        origins = composed(word).origins
        assert (origins["model.activation"], origins["model.batchnorm_scale"]) == ("model=mine", "defaults")
    assert composed("model=mine", "model.activation=relu").origins["model.activation"] == "command line"
    line = "model.activation=mish (model=wrong): must be one of relu, silu, gelu, gelu_tanh"
    assert refused("plan", "model=wrong") == f"error: {line}\n"


def test_an_own_data_set_changes_one_key_of_a_mapping() -> None:
    own("conf/dataset/mine.yaml", "defaults: [cifar, _self_]\ncolumns: {label: breed}\n")
    dataset = compose(["dataset=mine"]).config.dataset
    assert (dataset.classes, dataset.columns.label, dataset.columns.separator) == (10, "breed", "|")
    assert values("dataset", "mine") == asdict(dataset)


def test_an_own_optimizer_and_an_own_machine() -> None:
    own("conf/optimizer/mine.yaml", "defaults: [adamw, _self_]\nlr: 0.5\n")
    own("conf/hardware/mine.yaml", "defaults: [p5_4xlarge, _self_]\nname: mine\nprice_per_hour: 1.5\n")
    config = composed("recipe=mild", "optimizer=mine", "hardware=mine", "optimizer.beta1=0.5").config
    assert (config.optimizer.name, config.optimizer.lr, config.hardware.price_per_hour) == ("adamw", 0.5, 1.5)
    assert (machines()["mine"].gpu, machines()["mine"].price_per_hour) == ("H100 80GB", 1.5)
    for group in ("optimizer", "hardware"):
        assert "mine" in options(group)
        assert "mine" in output_of("ls", group)


def test_own_values_and_an_own_variant_of_an_algorithm() -> None:
    own("conf/algorithms/ema.yaml", "# @package algorithms.ema\nhalf_life: 7ba\nupdate_interval: 1ba\n")
    own("conf/algorithms/gentle.yaml", "# @package algorithms.sam\ndefaults: [sam, _self_]\nrho: 0.05\n")
    algorithms = composed("algorithms=[ema,gentle]").config.algorithms
    assert algorithms["ema"].half_life == "7ba"
    assert (algorithms["sam"].rho, algorithms["sam"].interval) == (0.05, 10)
    added = composed("recipe=mild", "algorithms.gentle=on", "algorithms.sam.interval=3").config.algorithms
    assert (added["sam"].rho, added["sam"].interval) == (0.05, 3)
    assert composed("algorithms=[gentle]", "algorithms.sam=off").config.algorithms.get("sam") is None


def test_a_recipe_extends_another_by_its_defaults_list() -> None:
    own("recipes/mine.yaml", "defaults: [hot, override model: resnet18, _self_]\nepochs: 77\n")
    config = composed("recipe=mine", "algorithms.sam.interval=9").config
    assert (config.recipe, config.epochs, config.model.name) == ("mine", 77, "resnet18")
    assert (config.algorithms["mixup"].alpha, config.algorithms["sam"].interval) == (0.25, 9)
    origins = composed("recipe=mine").origins
    assert origins["epochs"] == "recipe mine"
    assert origins["optimizer.lr"] == "recipe hot, base of mine"
    assert origins["model.name"] == "recipe mine"


def test_a_recipe_chooses_another_option_and_other_algorithms_than_its_base() -> None:
    text = "defaults: [hot, override optimizer: lamb, override algorithms: [ema, cutmix], _self_]\n"
    own("recipes/mine.yaml", text + "optimizer: {lr: 0.25}\nalgorithms: {ema: {half_life: 3ba}}\n")
    config = composed("recipe=mine").config
    assert (config.optimizer.name, config.optimizer.lr, config.optimizer.weight_decay) == ("lamb", 0.25, 0.02)
    assert set(config.algorithms) == {"ema", "cutmix"}
    assert set(composed("recipe=mine", "fidelity=published").config.algorithms) == {"ema", "cutmix"}


def test_a_recipe_extends_two_others() -> None:
    own("recipes/large.yaml", "batch_size: 4096\nepochs: 5\n")
    own("recipes/mine.yaml", "defaults: [hot, large, _self_]\nepochs: 77\n")
    config = composed("recipe=mine").config
    assert (config.epochs, config.batch_size, config.model.name) == (77, 4096, "resnet50")


def test_own_lengths_and_an_own_published_variant() -> None:
    own("recipes/mine.yaml", "defaults: [hot, _self_]\nepochs: 10\n")
    own("recipes/lengths/mine/10.yaml", "# @package _global_\n{}\n")
    own("recipes/lengths/mine/20.yaml", "# @package _global_\nseed: 7\n")
    own("recipes/published/mine.yaml", "# @package _global_\neval_every: 3ep\n")
    assert [composed("recipe=mine", f"epochs={epochs}").config.seed for epochs in (9, 19, 90)] == [42, 7, 7]
    config = composed("recipe=mine", "fidelity=published").config
    assert config.eval_every == "3ep"
    assert config.algorithms["mixup"].smoothed == "first"


@pytest.mark.parametrize("form", [["--config-dir", "else where"], ["--config-dir=else where"]])
def test_config_dir_adds_a_folder(form: list[str]) -> None:
    own("else where/schedule/mine.yaml", "defaults: [cosine, _self_]\nfinal: 0.5\n")
    own("else where/mine.yaml", "defaults: [mild, override schedule: mine, _self_]\n")
    assert "final: 0.5" in output_of("show", *form, "mine")
    assert cli.main(["show", "recipe=mine"]) == 2
    assert "no such folder" in refused("show", "--config-dir", "nowhere", "mild")


@pytest.mark.parametrize("name", ["8xh100", "my-model", "a.b", "007", "1e5", "x y", "it's"])
def test_an_option_may_have_any_name(name: str) -> None:
    own(f"conf/optimizer/{name}.yaml", "defaults: [sgd, _self_]\nlr: 0.125\n")
    assert composed(f"optimizer={name}").config.optimizer.lr == 0.125


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr: &a 1\nmomentum: *a", "mine.yaml:2: aliases"),
        ("name: sgd\nlr: ${oc.env:HOME}", "a reference must be"),
        ("defaults: [nope]", "has no existing optimizer: nope; one of: adamw,"),
        ("defaults: [mine]", "remove the loop"),
        ("defaults: 3", "a defaults list must hold names"),
        ("name: sgd\nlr: 1.0\nmomentun: 0.9", "did you mean optimizer.momentum?"),
    ],
)
def test_the_error_of_a_file_shows_its_fault(text: str, expected: str) -> None:
    own("conf/optimizer/mine.yaml", f"{text}\n")
    with pytest.raises(UserError) as caught:
        composed("optimizer=mine")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"), [("compile", "on"), ("schedule.fit", "on"), ("optimizer.scale_lr", "off"), ("run_name", "no")]
)
def test_on_off_and_no_mean_in_a_recipe_what_they_mean_on_the_command_line(key: str, value: str) -> None:
    head, _, rest = key.partition(".")
    own("recipes/mine.yaml", f"defaults: [hot, _self_]\n{head}: {f'{{{rest}: {value}}}' if rest else value}\n")
    typed = composed("recipe=hot", f"{key}={value}").config
    assert replace(composed("recipe=mine").config, recipe="hot") == typed


def test_a_file_that_changes_later_is_read() -> None:
    for value in (0.5, 0.25):
        own("conf/schedule/mine.yaml", f"defaults: [cosine, _self_]\ndilate: {value}\n")
        assert composed("schedule=mine").config.schedule.dilate == value


def test_an_option_of_another_application_is_named() -> None:
    own("conf/model/resnet18.yaml", "_target_: torchvision.models.resnet18\nnum_classes: 10\n")
    with pytest.raises(UserError, match=r"conf/model/resnet18.yaml:1: is an option of another application \(_target_"):
        composed("model=resnet18")


def test_a_group_that_a_recipe_chooses_again_needs_override() -> None:
    own("recipes/mine.yaml", "defaults: [hot, {model: resnet18}, _self_]\n")
    with pytest.raises(UserError, match=r"override model"):
        composed("recipe=mine")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a/b", "without /"), ("\U0001f469\u200d\U0001f52c", "the character U\\+200D"), ("x" * 201, "has 201 bytes")],
)
def test_the_error_of_a_runs_name_shows_what_is_wrong(name: str, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        composed(f"run_name={name}")


def test_cfg_and_info_show_hydras_composition(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "hot", "algorithms.mixup=off", "run_name=${recipe}-a", "--cfg"]) == 0
    assert {"run_name: ${recipe}-a", "  mixup: null"} <= {*capfd.readouterr().out.splitlines()}
    assert cli.main(["show", "hot_cutmix", "--info", "defaults-tree"]) == 0
    tree = capfd.readouterr().out
    assert tree.index("hot_cutmix:") < tree.index("hot:") < tree.index("train:") < tree.index("algorithms/cutmix")
