"""Words of other tools are refused with what to type here, also where the value differs or nothing is equal."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from launcher.config.compose import compose
from launcher.config.keys import line_instead, lines, takes
from launcher.config.validate import ON_OFF
from launcher.errors import UserError
from tests.commands import refused


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("deploy runs/a", "did you mean train export runs/a?"),
        ("serve runs/a", "did you mean train export runs/a?"),
        ("predict runs/a x.jpg --threshold 0.5", "thresholds of classes are gone since version 0.3"),
        ("mixup=0.2", "; type algorithms.mixup.alpha=0.2"),
        ("algorithms.mixup=0.2", "; type algorithms.mixup.alpha=0.2"),
        ("hot --mixup 0.2 epochs=3", "did you mean train hot algorithms.mixup.alpha=0.2 epochs=3?"),
        ("recipe=a1", "did you mean timm_a1? one of"),
        ("recipe=rsb_a2", "did you mean timm_a2? one of"),
        ("plan rsb_a2", "did you mean train plan recipe=timm_a2?"),
        ("recipe=ffcv", "did you mean ffcv_rn18 or ffcv_rn50? one of"),
        ("recipe=resnet50_hot", "did you mean hot? one of"),
        ("resnet50", "did you mean train model=resnet50?"),
        (
            "optimizer=sgd optimizer.betas=[0.9,0.95]",
            "; type optimizer.beta1=0.9 optimizer.beta2=0.95, which are for opt",
        ),
        ("optimizer=sgd optimizer.beta1=0.9", "no such key here; it is for optimizer=adamw"),
        ("crop=false", "; type image.scale=[1,1] image.ratio=[1,1]"),
        ("letterbox=true", "; type image.fit=pad image.scale=[1,1]"),
        ("linear_probe=true", "; type optimizer.backbone_lr=0"),
        ("--sync-bn", "batch norm counts the images of each process"),
        ("submit --slurm recipe=hot submit.qos=high", """set submit.lines, such as '["#SBATCH --qos=high"]'"""),
        ("submit --slurm recipe=hot nodelist=[a,b]", """takes it by submit.lines='["#SBATCH --nodelist=VALUE"]'"""),
        ("submit --slurm recipe=hot partition=gpu", "takes it by submit.partition=gpu"),
        ("hydra.run.dir=out", "; type runs=out"),
        ("lr=0.1", "did you mean optimizer.lr?"),
        ("amp=true", "; type precision=auto"),
        ("pretrained=true", "; type model.weights=torchvision"),
        ("resume=runs/a", "; type train resume runs/a"),
        ("batch=-1", "; type batch_size=auto"),
        ("device=0", "CUDA_VISIBLE_DEVICES=0"),
        ("dropout=0.1", "did you mean model.drop_rate? it is for model=timm"),
        ("save_dir=out", "did you mean runs?"),
        ("arch=resnet18", "did you mean model?"),
        ("dataloader.files.small_side=256", "gone since version 0.3, and dataloader.files.max_side writes smaller"),
        ("dataloader.files.restart_interval=4", "restart markers are gone since version 0.3"),
        ("dataloader.write_missing=true", "gone since version 0.3, and dataloader=ffcv writes missing files first"),
        ("prepare dataset=imagenet --clean", "gone since version 0.3, and rm removes FFCV files"),
        ("max_duration=90ep", "did you mean epochs? see train help epochs"),
    ],
)
def test_a_word_of_another_tool_is_refused_with_what_to_type(line: str, remedy: str) -> None:
    assert remedy in refused(*shlex.split(line))


def accepted(line: str) -> bool:
    """Return whether each key=value of a line has a value that its key takes."""
    typed = re.findall(
        r"\b([a-z_]\w*(?:\.\w+)*)=(\[.*?\]|[^\s,;]+)", re.split(", which are for|; train submit|train curve", line)[0]
    )
    plain = [(key, text if text in ON_OFF else yaml.safe_load(text)) for key, text in typed]
    return all(takes(key, value) for key, value in plain if (key.rpartition(".")[0], value) != ("algorithms", "on"))


@pytest.mark.parametrize("word", lines())
def test_every_value_that_a_line_has_is_one_of_its_key(word: str) -> None:
    samples = {"number": [0.5, 1], "list": [[0.9, 0.95]], "any": ["a", True, 3]}
    for kind, text in lines()[word].items():
        assert text.startswith(("type ", "omit it"))
        typed = [line_instead(word, value) or "" for value in samples.get(kind, [yaml.safe_load(kind)])]
        assert any(map(accepted, typed)), typed


@pytest.mark.parametrize(
    ("file", "values", "word"),
    [("optimizer/mine", "lr: 0.1", "optimizer=mine"), ("algorithms/mine", "rate: 1", "algorithms.mine=on")],
)
def test_an_option_without_a_target_is_refused_with_its_file(
    file: str, values: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / file).parent.mkdir(parents=True)
    (tmp_path / "conf" / f"{file}.yaml").write_text(values)
    with pytest.raises(UserError, match=rf"{file}\.yaml:? has no _target_; write _target_: and the dotted name"):
        compose([word])
