"""`train export RUN hub:NAME/MODEL` by the real command, to a server that speaks the Hub's requests."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from torchvision.models import resnet18

from launcher.publish.files import ModelFiles, write_files
from launcher.records.run_folder import RunFolder
from tests.commands import output_of, refused
from tests.images import write_images
from tests.local_hub import TOKEN, Hub, local_hub
from tests.runs import SHAPES, SMALL
from tests.saved_runs import finished

pytestmark = pytest.mark.system
PLAIN = ["algorithms.blurpool=off", "algorithms.ema=off"]
FILES = {"README.md", "config.json", "model.safetensors", "model_card.json"}
BY_TIMM = """
import json, timm, torch
network = timm.create_model("hf-hub:me/small", pretrained=True).eval()
torch.manual_seed(0)
print(json.dumps([network(torch.randn(2, 3, 32, 32)).tolist(), network.pretrained_cfg["label_names"]]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of torchvision's ResNet-18, runs/small, and images."""
    folder = tmp_path_factory.mktemp("publish")
    finished(folder / "runs", *PLAIN)
    write_images(folder / "images", {"train": 1, "val": 1})
    return folder


@pytest.fixture
def hub() -> Iterator[Hub]:
    with local_hub() as hub:
        yield hub


def test_a_pushed_model_is_read_back_with_equal_bits_by_train_and_by_timm(folder: Path, hub: Hub) -> None:
    output, errors = hub.train(folder, "export", "runs/small", "hub:me/small")
    assert (output, errors.count("note")) == (f"{hub.address}/me/small\n", 0)
    assert hub.private == {"me/small": True}
    assert hub.files["me/small"].keys() == FILES
    assert not any(
        TOKEN.encode() in content or str(folder).encode() in content for content in hub.files["me/small"].values()
    )
    card = ModelCard(hub.files["me/small"]["README.md"].decode(), ignore_metadata_errors=False)
    assert (card.data.library_name, card.data.pipeline_tag) == ("timm", "image-classification")
    assert "train predict hub:me/small IMAGES" in card.text
    assert 'timm.create_model("hf-hub:me/small", pretrained=True)' in card.text
    images = str(folder / "images" / "val")
    of_run, _ = hub.train(folder, "predict", "runs/small", images, "--json")
    of_hub, _ = hub.train(folder, "predict", "hub:me/small", images, "--json")
    assert of_hub == of_run
    output, _ = hub.train(folder, *SHAPES, *PLAIN, "recipe=small", "model.weights=hub:me/small", "run_name=again")
    assert "initial weights from hub:me/small: the whole head" in output
    initial = load_file(folder / "runs" / "again" / "initial.safetensors")
    network = resnet18(num_classes=10)
    network.load_state_dict(load_file(next((folder / "hf").rglob("model.safetensors"))))
    assert all(torch.equal(initial[name], tensor) for name, tensor in network.state_dict().items())
    by_timm = subprocess.run([sys.executable, "-c", BY_TIMM], env=hub.environment(folder / "hf"), capture_output=True)
    logits, labels = json.loads(by_timm.stdout)
    torch.manual_seed(0)
    torch.testing.assert_close(torch.tensor(logits), network.eval()(torch.randn(2, 3, 32, 32)))
    assert labels[0] == "arrow"


def test_a_dry_run_prints_what_goes_and_sends_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    # note: neither reads a token nor calls the Hub
    monkeypatch.setattr("huggingface_hub.HfApi", None)
    monkeypatch.setattr("huggingface_hub.get_token", None)
    *files, last = output_of("export", "runs/small", "hub:me/dry", "--dry-run").splitlines()
    assert last == "4 files for hub:me/dry, private; nothing was sent"
    assert {line.split()[1] for line in files} == FILES
    document = json.loads(output_of("export", "runs/small", "hub:me/dry", "--dry-run", "--json", "--public"))
    assert (document["public"], document["timm"], document["address"]) == (True, True, None)
    assert {one["file"] for one in document["files"]} == FILES


def test_errors_of_the_hub_are_one_line(folder: Path, hub: Hub) -> None:
    push = ("export", "runs/small", "hub:me/errors")
    assert "needs a token of the Hub; run `hf auth login`" in hub.train(folder, *push, token=None, code=2)[1]
    wrong = hub.train(folder, *push, token="hf_wrong", code=2)[1]
    assert "the Hub refuses your token (401)" in wrong
    assert "hf_wrong" not in wrong
    hub.put("me/errors", {})
    assert (
        "hub:me/errors is public already; choose another name, or add --public" in hub.train(folder, *push, code=2)[1]
    )
    hub.put("me/errors", {}, private=True)
    assert "or remove --public" in hub.train(folder, *push, "--public", code=2)[1]
    hub.closed_to_writes, push = True, (*push[:2], "hub:me/closed")
    assert "needs write access to push (403)" in hub.train(folder, *push, code=2)[1]
    assert (
        "does not exist, or your token cannot read it (404)"
        in hub.train(folder, "predict", "hub:me/no", "a", code=2)[1]
    )
    hub.put("me/empty", {"README.md": b""})
    assert "hub:me/empty has no model.safetensors" in hub.train(folder, "predict", "hub:me/empty", "a", code=2)[1]
    assert "no such branch, tag or commit" in hub.train(folder, "predict", "hub:me/empty@v9", "a", code=2)[1]
    hub.put("me/other", {"model.safetensors": b"x"})
    assert (
        "me/other has no model_card.json, so it is no published run"
        in hub.train(folder, "predict", "hub:me/other", "a", code=2)[1]
    )
    address, hub.address = hub.address, "http://127.0.0.1:9"
    assert "no connection to http://127.0.0.1:9" in hub.train(folder, *push, code=2)[1]
    assert "no connection to http://127.0.0.1:9" in hub.train(folder, "predict", "hub:me/new", "a", code=2)[1]
    hub.address = address
    words = [*SMALL, "model.weights=hub:me/no"]
    assert "error: model.weights=hub:me/no: does not exist" in hub.train(folder, *words, code=2)[1]


def test_images_and_an_onnx_file_on_request_are_published_too(folder: Path, hub: Hub) -> None:
    (folder / "runs" / "small" / "confusion.png").write_bytes(b"png")
    hub.train(folder, "export", "runs/small", "hub:me/onnx", "--onnx")
    (folder / "runs" / "small" / "confusion.png").unlink()
    of_onnx = {f"onnx/{name}" for name in ("model.onnx", "model_card.json")}
    assert hub.files["me/onnx"].keys() == FILES | of_onnx | {"confusion.png"}
    assert "![confusion matrix](confusion.png)" in (text := hub.files["me/onnx"]["README.md"].decode())
    assert str(folder) not in text
    assert "| top-1 |" in text


def published(run: RunFolder, output: Path) -> ModelFiles:
    return write_files(run, output, "hub:me/out", best=False, onnx=False, report=lambda *_: None)


def test_a_network_that_timm_lacks_has_no_config_of_timms(tmp_path: Path) -> None:
    assert not published(finished(tmp_path), tmp_path / "out").timm
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES - {"config.json"}
    assert "timm.create_model" not in (tmp_path / "out" / "README.md").read_text()


def test_a_model_of_timm_keeps_its_arguments(tmp_path: Path) -> None:
    words = [*PLAIN, "model=timm", "model.architecture=vit_tiny_patch16_224", "model.img_size=32"]
    assert published(finished(tmp_path, *words), tmp_path / "out").timm
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    assert values["model_args"] == {"img_size": 32}
    assert timm.create_model(f"local-dir:{tmp_path}/out", pretrained=True).patch_embed.img_size == (32, 32)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["me/small"], "me/small is not a place to publish; type hub:NAME/MODEL, or -o FOLDER"),
        (["hub:small"], "hub:small is not a repository of the Hub; type hub:NAME/MODEL"),
        (["hub:me/small@v1"], "hub:me/small@v1 has a revision"),
        (["folder:out"], "folder:out is not a place to publish; type hub:NAME/MODEL, or -o FOLDER"),
        (["--public"], "--public is for hub:NAME/MODEL; add it, or remove --public"),
        (["--dry-run"], "--dry-run is for hub:NAME/MODEL; add it, or remove --dry-run"),
        (["hub:me/small", "-o", "out"], "--output is for an export to a folder; remove it, or hub:me/small"),
    ],
)
def test_a_wrong_place_is_refused(
    folder: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert message in refused("export", "runs/small", *words)
    assert not os.path.lexists("out")
