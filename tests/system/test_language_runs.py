"""Language models from the command line, by each verb."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import launcher
from launcher.records.metrics import read_metrics
from launcher.records.run_folder import RunFolder
from tests.language import RUN, text_in
from tests.runs import Train, draw_nothing

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Return a folder with runs of GPT-2, exported, and of ALiBi."""
    train = Train(text_in(tmp_path_factory.mktemp("language")), before=(draw_nothing,))
    for name, changes in {"gpt2": [], "alibi": ["algorithms=[alibi]", "algorithms.alibi.length_scaling=0.5"]}.items():
        train(*words_of(train), "epochs=1", *changes, f"run_name={name}")
    train("export", "runs/gpt2", "-o", "gpt2")
    return train


def words_of(train: Train) -> list[str]:
    return [*RUN, f"dataset.path={train.folder}", "dataloader.folder=tokens", "hardware=this_machine"]


def test_hugging_faces_network_has_the_logits_of_the_run(train: Train) -> None:
    transformers = pytest.importorskip("transformers")
    folder, tokens = train.folder / "gpt2", torch.randint(257, (3, 9), generator=torch.Generator().manual_seed(0))
    expected = launcher.load(train.folder / "runs" / "gpt2").outputs(tokens).cpu()
    assert expected.std() > 0.1
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["eos_token_id"], config["vocab_size"]) == ("gpt2", 256, 257)
    theirs, loaded = transformers.GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    assert not any(loaded.values())
    torch.testing.assert_close(theirs.eval()(tokens).logits, expected, rtol=1e-5, atol=1e-5)


def test_an_export_without_the_text_compares_noise_and_is_where_a_run_may_start(train: Train) -> None:
    run = RunFolder(train.folder / "runs" / "gpt2")
    config = run.config.read_text()
    run.config.write_text(config.replace(f"path: {train.folder}\n", f"path: {train.folder}/missing\n"))
    try:
        assert "same logits as the run on 8 noise" in train("export", "runs/gpt2", "-o", "without").stderr
    finally:
        run.config.write_text(config)
    train(*words_of(train), "epochs=1", "run_name=tuned", "model.weights=gpt2", "optimizer.lr=0")
    before, after = (train.state(train.folder / "runs" / name)["weights"] for name in ("gpt2", "tuned"))
    assert all(torch.equal(after[name], weight) for name, weight in before.items())  # type: ignore[attr-defined, index]


def test_a_damaged_card_of_a_language_model_is_refused(train: Train, tmp_path: Path) -> None:
    for file in (train.folder / "gpt2").glob("*.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    card: dict[str, Any] = json.loads((tmp_path / "model_card.json").read_text())
    (tmp_path / "model_card.json").write_text(json.dumps(card | {"task": {"tokenizer": 5}}))
    assert "has other values of its task than tokenizer" in train("predict", str(tmp_path), "x", code=2).stderr


def test_flags_of_the_other_kind_of_model_are_refused(train: Train) -> None:
    for words in (["--top", "3"], ["--csv"], ["--list", "files"]):
        error = train("predict", "runs/gpt2", "tree", *words, code=2).stderr
        assert error.startswith(f"error: {words[0]} is for task=")
        assert error.endswith(", and runs/gpt2 has task=language; remove it\n")


GPT2 = ["recipe=gpt2_125m", "dataset.train_samples=7168000", "dataset.val_samples=1000", "dataset.classes=50257"]


def test_measurements_have_tokens_and_no_advice_on_images(train: Train) -> None:
    printed = train("estimate", *words_of(train), "--seconds", "0.1").stdout
    assert "tokens  steps  step alone" in printed
    assert "tokens/s" in printed
    assert not any(word in printed for word in ("images", "image px", "channels_last", "progressive", "workers"))


def test_predictions_have_tokens_and_state_what_they_were_fitted_to(train: Train) -> None:
    done = train("plan", *GPT2, "--on", "p4d_24xlarge")
    for part in ("tokens/s", "tokens  steps", "fitted to steps on images"):
        assert part in done.stdout + done.stderr
    error = train("plan", *GPT2, "--on", "p4d_24xlarge", "--quality", "70", code=2).stderr
    assert error == "error: --quality=70.0: is a top-1, and task=language has perplexity; set epochs= instead\n"


def test_look_is_for_images(train: Train) -> None:
    error = train("look", *words_of(train), code=2).stderr
    assert error == "error: task=language: has no images to show; `train look` is for tasks of images\n"


def test_comparisons_have_perplexity_and_no_percents(train: Train) -> None:
    printed = train("compare", "runs/gpt2", "runs/alibi").stdout
    assert "perplexity" in printed
    assert "has no point this" in printed
    assert not any(word in printed for word in ("-perplexity", " %  ", "points", "top-1"))
    listed = train("ls", "runs", "runs").stdout
    assert "perplexity" in listed


def test_ablations_have_perplexity_and_mlperf_is_for_classification(train: Train) -> None:
    printed = train("ablate", *words_of(train), "algorithms=[gradient_clipping]", "--grid").stdout
    assert "perplexity" in printed
    assert not any(word in printed for word in ("-perplexity", "top-1"))
    error = train("report", "runs/gpt2", "-o", "mlperf.log", code=2).stderr
    assert error.startswith("error: runs/gpt2 has task=language, and MLPerf's log is of classification, with top-1")
    assert not (train.folder / "mlperf.log").exists()


def test_a_perplexity_ends_a_run_and_scores_it(train: Train) -> None:
    printed = train(*words_of(train), "target=perplexity:20", "epochs=30", "run_name=reached").stdout
    assert re.search(r"target perplexity:20 +reached at epoch", printed)
    rows = read_metrics(train.folder / "runs" / "reached" / "metrics.jsonl")
    perplexities = [row["metrics"]["perplexity"] for row in rows if row["kind"] == "eval"]
    assert perplexities[-1] <= 20 < min(perplexities[:-1])
    scored = json.loads(train("compare", "runs/reached", "--algoperf", "self", "--target", "20", "--json").stdout)
    assert [0 < seconds < 600 for row in scored["seconds_to_target"].values() for seconds in row.values()] == [True]
    assert train("compare", "runs/reached", "runs/gpt2", "--quality", "20").stdout


def test_the_recipe_for_a_first_try_trains_on_text_that_every_machine_has(tmp_path: Path) -> None:
    small = ["dataset.train_samples=64", "dataset.val_samples=8", "model.width=16", "model.depth=1", "model.heads=1"]
    train = Train(tmp_path)
    train("recipe=small_gpt", "launch=cpu", "launch.nproc=1", *small, "run_name=first")
    (last,) = [row for row in read_metrics(tmp_path / "runs" / "first" / "metrics.jsonl") if row["kind"] == "eval"]
    assert 1 < last["metrics"]["perplexity"] < 257
