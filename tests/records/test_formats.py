"""What earlier versions wrote can still be read: run folders, checkpoints, exports and prepared files.

Each `format` was written by its version: a run of a tiny network of two epochs of three steps and its export, FFCV
files, and the values of every option; format1 has a run of another task too, and format2 the options' fingerprints.
"""

import gzip
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import launcher
from launcher.config import code
from launcher.config.compose import compose
from launcher.config.formats import FORMAT, JOB, completed, facts_of, is_removed
from launcher.config.layers import get, leaves
from launcher.config.resolved import as_mapping, fingerprint, is_free, read, typed_run, written_fingerprint
from launcher.config.yaml_file import as_yaml, read_mapping
from launcher.data.batch import START
from launcher.data.crops import centre_boxes
from launcher.data.ffcv.dataset import FFCVDataset
from launcher.data.ffcv.reader import DecodingPool
from launcher.data.inspection import inspect_data
from launcher.data.sampling import Request, Shard
from launcher.errors import UserError
from launcher.records.metrics import read_metrics
from launcher.records.run_folder import RunFolder
from launcher.records.writer import Writer, check_writer, read_writer
from launcher.training import checkpoint
from launcher_lab.cli.training import check_existing
from tests.commands import execute, output_of, refused
from tests.images import write_images
from tests.runs import Here

FORMATS = sorted(Path(__file__).parent.glob("format*"))
OF_AN_EXAMPLE = "model=airbench"


@pytest.fixture(params=FORMATS, ids=[path.name for path in FORMATS])
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with what a version wrote."""
    shutil.copytree(request.param, tmp_path / "runs")
    monkeypatch.chdir(tmp_path / "runs")
    return tmp_path / "runs"


of_the_first = pytest.mark.parametrize("old", FORMATS[:1], ids=["format1"], indirect=True)


@pytest.mark.parametrize("number", range(1, FORMAT))
def test_each_earlier_format_has_samples(number: int) -> None:
    assert Path(__file__).with_name(f"format{number}") in FORMATS


@of_the_first
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["eval", "run"], "step 6: top-1 10.00%  top-5 50.00%  loss 2.3003"),
        (["eval", "numbers", "--best"], None),
        (["compare", "run", "numbers"], "no recipe  scene_colours"),
        (["diff", "run", "numbers"], "loss.name"),
        (["report", ".", "--output", "report.html"], "2 runs, 2 points"),
        (["report", "run", "--output", "mlperf.log"], "mlperf.log"),
        (["export", "numbers"], None),
        (["eval", "run", "--by-class"], "recall (top-1)"),
        (["ls", "runs", ".", "--json"], '"best_text": "15.00%"'),
        (["compare", ".", "--axis", "epochs"], "small"),
    ],
)
def test_commands_read_a_run_of_the_first_format(words: list[str], expected: str | None, old: Path) -> None:
    if expected is None:
        assert "no checkpoint yet" in refused(*words)
    else:
        assert expected in output_of(*words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["eval", "run"], "step 6: top-1 {value}"),
        (["compare", "run"], "small  shapes, vit"),
        (["ls", "runs", "."], "finished  top-1"),
        (["export", "run", "--output", "again"], "again/model.safetensors"),
    ],
)
def test_commands_read_a_run(words: list[str], expected: str, old: Path) -> None:
    *_, last = (row for row in read_metrics(old / "run" / "metrics.jsonl") if row["kind"] == "eval")
    assert expected.format(value=f"{last['metrics']['top1']:.2%}") in output_of(*words)


def test_a_grid_takes_a_run_as_its_own_only_with_the_same_values(old: Path) -> None:
    config = read(old / "run" / "config.yaml")
    check_existing(old / "run", config, here=True)
    with pytest.raises(UserError, match="is a run with other values of seed; set another folder"):
        check_existing(old / "run", replace(config, seed=7), here=True)


def test_an_export_and_its_run_predict_the_same(old: Path, tmp_path: Path) -> None:
    image = str(next(write_images(tmp_path / "images", {"val": 1}).rglob("*.*")))
    of_the_run, of_the_export = (output_of("predict", name, image, "--json") for name in ("run", "export"))
    assert json.loads(of_the_run) == json.loads(of_the_export)
    if (old / "export_numbers").exists():
        assert "red" in output_of("predict", "export_numbers", image)


def test_what_was_fitted_to_predictions_is_left_out(old: Path, tmp_path: Path) -> None:
    image = str(next(write_images(tmp_path / "images", {"val": 1}).rglob("*.*")))
    expected = output_of("predict", "export", image)
    (old / "run" / "calibration.json").write_text('{"step": 6, "temperature": 2.0}')
    card = json.loads((old / "export" / "model_card.json").read_text())
    facts = {"temperature": 2.0, "confidence": 0.9}
    (old / "export" / "model_card.json").write_text(json.dumps({**card, "task": facts}))
    assert output_of("predict", "export", image) == output_of("predict", "run", image) == expected
    assert facts_of({"threshold": [0.25, 0.75]}) == {"threshold": 0.5}


def test_every_record_is_read(old: Path) -> None:
    rows = read_metrics(old / "run" / "metrics.jsonl")
    lines = (old / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == len(lines)
    views = [row["view"] for row in rows if row["kind"] == "train"]
    assert (len(views), views[0], views[-1]) == (6, 8, 16)


def test_a_run_resumes_to_the_same_weights(old: Path, tmp_path: Path) -> None:
    here = Here(tmp_path)

    def weights() -> Any:
        return here.state(old / "run")["weights"]

    before = weights()
    (old / "run" / "checkpoints" / "step-00000006.pt").unlink()
    here("resume", "runs/run")
    # note: not the same bits, which another processor does not compute
    torch.testing.assert_close(weights(), before, rtol=0, atol=1e-4)
    here("resume", "runs/run", "epochs=3")
    assert here.state(old / "run")["step"] == 9


def test_weights_of_a_run_and_an_export_start_another(old: Path) -> None:
    model = [f"model.{key}={value}" for key, value in read_mapping(old / "run" / "config.yaml")["model"].items()
             if key in ("patch_size", "width", "depth", "heads", "mlp_width")]  # fmt: skip
    words = ["plan", "dataset=shapes", "dataset.native_size=16", "batch_size=8", "schedule.fit=on", "launch=cpu"]
    for source in ("run", "export", "run/checkpoints/step-00000003.pt"):
        assert "16 px" in output_of(*words, "model=vit", *model, f"model.weights={source}")


def test_prepared_files_are_read(old: Path) -> None:
    for file in (old / "ffcv").glob("*.gz"):
        (old / "ffcv" / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    words = ["dataset=shapes", "dataloader=ffcv", "dataloader.files.max_side=32", f"dataloader.folder={old / 'ffcv'}"]
    words += ["dataset.train_samples=10", "dataset.val_samples=10"]
    inspection = inspect_data(compose(words).config, must_exist=True)
    assert inspection.classes is not None
    assert len(inspection.classes) == 10
    # note: JPEGs with restart markers, which only an earlier version wrote
    for file in (old / "ffcv").glob("train-*-restart1.beton"):
        files = FFCVDataset.of(compose([*words, "dataloader.files.jpeg_share=1.0"]).config)
        assert files.path("train") == file
        train = files.open("train")
        shard = Shard(0, 1, workers=1, prefetch=1, device=torch.device("cpu"))
        request = Request(START, np.arange(train.samples), 32)
        boxes = centre_boxes(*train.sizes(request.indices), 32, 32)
        pool = DecodingPool(train, lambda _, boxes=boxes: boxes, shard=shard, preload=False)
        ((images, _, _),) = pool.batches([request])
        pool.close()
        assert images.float().std() > 1


def options(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a config with each option of a version."""
    known = json.loads((path / "values.json").read_text())
    yield "defaults", known["config"]
    for name, values in known["algorithms"].items():
        yield name, {**known["config"], "algorithms": {name: values}}
    for group, named in known["options"].items():
        for name, values in named.items():
            yield f"{group}={name}", {**known["config"], group: values}


@pytest.mark.parametrize("path", FORMATS, ids=lambda path: path.name)
def test_the_values_of_every_option_are_read(path: Path) -> None:
    fingerprints = json.loads((path / "values.json").read_text()).get("fingerprints", {})
    for name, values in options(path):
        if name == OF_AN_EXAMPLE:
            continue
        config = typed_run(values, name)
        before, after = dict(leaves(completed(values))), dict(leaves(as_mapping(config)))
        changed = {key for key, value in before.items() if key not in after or after[key] != value}
        assert all(map(is_removed, changed)), (name, changed)
        if all(map(is_free, changed)):
            assert fingerprints.get(name) in (None, fingerprint(config)[:16]), name
        else:
            with pytest.raises(UserError, match="resume the run with the version of train that wrote it"):
                typed_run(values, name, to_resume=True)


@pytest.mark.parametrize(
    ("key", "value", "instead"),
    [("nonfinite.policy", "rollback", "skip"), ("dataloader.decoder", "opencv", "simplejpeg")],
)
def test_a_removed_value_is_read_as_another_one_but_not_resumed(key: str, value: str, instead: str, old: Path) -> None:
    with_keys(old / "run", **{key.replace(".", "__"): value})
    assert get(as_mapping(read(old / "run" / "config.yaml")), key) == instead
    line = "(run/config.yaml): is gone; resume the run with the version of train that wrote it"
    assert refused("resume", "run", "epochs=3") == f"error: {key}={value} {line}\n"


def test_a_run_whose_images_have_another_order_now_is_not_resumed(old: Path) -> None:
    with_keys(old / "run", dataset__name="cifar")
    line = "error: dataset=cifar: trains on images in another order since version 0.3; resume it with train 0.[12].*"
    assert re.fullmatch(f"{line}\n", refused("resume", "run", "epochs=3"))


def test_a_number_of_each_class_is_read_as_their_mean_but_not_resumed(old: Path) -> None:
    with_keys(old / "run", algorithms__label_smoothing={"smoothing": [0.25, 0.75]})
    key = "algorithms.label_smoothing.smoothing"
    assert get(as_mapping(read(old / "run" / "config.yaml")), key) == 0.5
    assert f"{key}=[0.25, 0.75] (run/config.yaml): is gone; resume" in refused("resume", "run", "epochs=3")


def test_an_option_that_became_an_example_is_read_with_its_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = FORMATS[-1]
    lookahead = json.loads((path / "values.json").read_text())["algorithms"]["lookahead"]
    (values,) = [values for name, values in options(path) if name == OF_AN_EXAMPLE]
    values |= {"algorithms": {"lookahead": lookahead}}
    line = r"^model\.name=airbench: no such model; type code=.* in a copy of examples/airbench of the .*$"
    with pytest.raises(UserError, match=line):
        typed_run(values, "run")
    assert typed_run(values, "run", imports=False).model.name == "airbench"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TRAIN_CODE", "[]")
    code.use([str(Path(__file__).parents[2] / "examples" / "airbench" / "airbench")])
    config = typed_run(values, "run", to_resume=True)
    assert (config.model.name, [*config.algorithms]) == ("airbench", ["lookahead"])
    for name in [name for name in sys.modules if name.partition(".")[0] == "airbench"]:
        monkeypatch.delitem(sys.modules, name)


def test_a_key_with_the_old_behaviour_does_not_separate_checkpoint_and_run(old: Path) -> None:
    config = read(old / "run" / "config.yaml")
    assert checkpoint.load(old / "run" / "checkpoints" / "step-00000003.pt")["config"] == fingerprint(config)


# -- keys of another version


def with_keys(run: Path, **added: Any) -> None:
    values = read_mapping(run / "config.yaml")
    for key, value in added.items():
        section, _, name = key.rpartition("__")
        (values[section] if section else values)[name] = value
    (run / "config.yaml").write_text(as_yaml(values))


@of_the_first
def test_keys_of_another_version_are_ignored_with_a_note(old: Path) -> None:
    with_keys(old / "run", image__sharpness=3, telemetry=True)
    code, output, errors = execute("eval", "run")
    assert (code, "top-1 10.00%" in output) == (0, True)
    both = "(image.sharpness, telemetry|telemetry, image.sharpness)"
    assert re.fullmatch(rf"note: run/config\.yaml: ignoring {both}: this version has no such key\n", errors)
    assert "damaged" not in output_of("ls", "runs", ".")


def test_a_run_that_used_a_removed_key_is_evaluated_but_not_resumed(old: Path) -> None:
    path = old / "run" / "config.yaml"
    with_keys(old / "run", algorithms__ema={**read_mapping(path)["algorithms"]["ema"], "snapshots": "4ba"})
    assert written_fingerprint(path) != fingerprint(read(path))
    for file in (old / "run" / "checkpoints").glob("*.pt"):
        state = {**checkpoint.load(file), "config": written_fingerprint(path)}
        file.unlink()
        checkpoint.save(state, file)
    assert "top-1" in output_of("eval", "run")
    assert "algorithms.ema.snapshots=4ba (run/config.yaml): is no key" in refused("resume", "run", "epochs=3")
    with_keys(old / "run", seed=7)
    assert "belong to different runs" in refused("eval", "run")


@of_the_first
def test_a_run_with_keys_of_another_version_resumes_if_they_cannot_matter(old: Path, tmp_path: Path) -> None:
    with_keys(old / "run", image__sharpness=3, launch__nice=1)
    shown = refused("resume", "run", "epochs=3")
    assert "image.sharpness=3 (run/config.yaml): is no key of this version; resume the run with the version" in shown
    assert "launch.nice" not in shown
    values = read_mapping(old / "run" / "config.yaml")
    del values["image"]["sharpness"]
    (old / "run" / "config.yaml").write_text(as_yaml(values))
    assert "ignoring launch.nice" in Here(tmp_path)("resume", "runs/run", "epochs=3").stderr


def test_a_wrong_value_is_reported_beside_a_missing_algorithm(old: Path) -> None:
    with_keys(old / "run", algorithms__sharpen={"amount": 1}, dataloader__decoder="tpu")
    code, _, shown = execute("eval", "run")
    assert (code, "algorithms.sharpen" in shown, "dataloader.decoder=tpu" in shown) == (2, True, True)


def test_an_algorithm_of_another_version_is_never_ignored(old: Path) -> None:
    with_keys(old / "run", algorithms__sharpen={"amount": 1})
    assert "algorithms.sharpen" in refused("eval", "run")


# -- who wrote a run


def test_a_run_folder_has_the_version_that_wrote_it(tmp_path: Path) -> None:
    run = Here(tmp_path, {**os.environ, JOB: "mine"}).small("first")
    assert read_writer(RunFolder(run)) == Writer(FORMAT, launcher.__version__, "mine", str(run.resolve()))


@of_the_first
def test_a_job_uses_no_run_of_another(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(old / "run")
    assert read_writer(run) == Writer(1, "0.1", None)
    check_writer(run)
    monkeypatch.setenv(JOB, "a")
    with pytest.raises(UserError, match="is a run of another job"):
        check_writer(run)
    run.writer.write_text('{"format": 2, "version": "0.2", "job": "a"}')
    check_writer(run)
    run.writer.write_text('{"format": 99, "version": "9.1", "job": "a"}')
    with pytest.raises(UserError, match=r"has format 99, but .* up to format \d+; use train 9\.1, which wrote it"):
        check_writer(run)
    run.writer.write_text("{")
    with pytest.raises(UserError, match=r"run\.json is damaged"):
        check_writer(run)
