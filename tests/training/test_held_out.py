"""`dataset.test_path`: images on which only the finished run is evaluated, once."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from launcher.config.compose import compose
from launcher.config.resolved import read
from launcher.data.builtin._figures import FIGURES, draw_figure
from launcher.data.inspection import held_out
from launcher.data.loading import build_evaluation
from launcher.data.sources.find import open_source
from launcher.data.workers import quiet
from launcher.plan.plan import Plan
from launcher.rank.group import Ranks
from launcher.records.metrics import read_metrics
from launcher.records.run import read_run
from launcher.records.run_folder import RunFolder
from launcher.records.summary import summary_table
from tests.runs import SMALL, Here

CLASSES = sorted(FIGURES)


def drawn(folder: Path, names: dict[str, str], count: int = 4) -> Path:
    """Write images of figures into folders with any names."""
    for name, figure in names.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            draw_figure(figure, 40, "held out", number).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def held_out_images(tmp_path: Path) -> Path:
    return drawn(tmp_path / "v2", {name: name for name in CLASSES})


def test_a_finished_run_is_evaluated_once_with_a_record_and_a_line_of_the_summary(
    here: Here, held_out_images: Path
) -> None:
    run = here.small("a", f"dataset.test_path={held_out_images}", "epochs=2", "schedule.warmup=0ba")
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["kind"] for row in rows][-2:] == ["test", "end"]
    (record,) = [row for row in rows if row["kind"] == "test"]
    assert (record["samples"], record["step"], record["epoch"]) == (4 * len(CLASSES), 12, 2)
    evaluated_again = json.loads(here("eval", str(run), f"dataset.path={held_out_images}", "--json").stdout)
    assert record["metrics"] == pytest.approx(evaluated_again["metrics"])
    assert record["loss"] == pytest.approx(evaluated_again["loss"])
    assert read_run(run).test_top1 == 100 * record["metrics"]["top1"]
    table = summary_table(RunFolder(run), read(run / "config.yaml"))
    assert any("test images" in str(cell) for cell in table.columns[0].cells)
    assert rows[-1]["eval_seconds"] > sum(row["seconds"] for row in rows if row["kind"] == "eval")
    plain = here.small("b", "epochs=2", "schedule.warmup=0ba")
    assert all(map(torch.equal, here.state(run)["weights"].values(), here.state(plain)["weights"].values()))


def test_a_stopped_run_is_evaluated_when_it_has_finished(here: Here, held_out_images: Path) -> None:
    here(*SMALL, "run_name=c", f"dataset.test_path={held_out_images}", stop_after=4, code=143)
    run = here.folder / "runs" / "c"
    assert not [row for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "test"]
    here("resume", str(run))
    assert [row["kind"] for row in read_metrics(run / "metrics.jsonl")].count("test") == 1


def test_missing_test_images_are_refused_before_the_start(here: Here, held_out_images: Path, tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "nowhere", "not a folder; set a folder that holds CLASS/*.jpg"),
        (drawn(tmp_path / "others", {"abc": "star"}), "contains no class of the run"),
    ):
        refused = here(*SMALL, "run_name=d", f"dataset.test_path={path}", code=2).stderr
        # note: of a long path the message has no middle
        assert re.match(rf"error: dataset.test_path=\S+{path.name}: .*{re.escape(message)}", refused)
        assert len(refused.strip().splitlines()) == 1
    assert not (here.folder / "runs" / "d").exists()


def test_unreadable_test_images_are_an_error_or_skipped(here: Here, held_out_images: Path) -> None:
    whole = (held_out_images / "ring" / "2.png").read_bytes()
    (held_out_images / "ring" / "2.png").write_bytes(whole[: len(whole) // 2])
    words = [*SMALL, f"dataset.test_path={held_out_images}", "epochs=2", "schedule.warmup=0ba"]
    errors = here(*words, "run_name=e", code=2).stderr
    assert f"{held_out_images}/ring/2.png cannot be read as an image" in errors
    assert "dataset.skip_bad=true skips them" in errors
    output = here(*words, "run_name=f", "dataset.skip_bad=true").stdout
    assert "dataset.test_path: dataset.skip_bad=true: skipping 1 image that cannot be decoded: ring/2.png" in output
    (held_out_images / "ring" / "2.png").write_bytes(whole)
    here("resume", str(here.folder / "runs" / "e"))
    for name, count in (("e", 40), ("f", 39)):
        rows = read_metrics(here.folder / "runs" / name / "metrics.jsonl")
        assert [row["samples"] for row in rows if row["kind"] == "test"] == [count]


def test_folders_named_by_numbers_are_the_classes_of_these_numbers(tmp_path: Path) -> None:
    """ImageNet-v2 has folders 0 to 999; as text 10 would sort before 2."""
    folder = drawn(tmp_path / "v2", {"2": "star", "9": "ring", "0": "cross"}, count=2)
    images, notes = held_out(compose(["dataset=shapes", f"dataset.test_path={folder}"]).config, CLASSES)
    assert images.labels.tolist() == [0, 0, 2, 2, 9, 9]
    assert notes == [
        "classes are numbers, so they are read as places in the run's list: 0 is arrow",
        notes[-1],
    ]
    assert notes[-1].startswith("no images of 7 of the run's 10 classes")


@pytest.mark.parametrize(("ranks", "loader"), [(1, "torchvision"), (3, "torchvision"), (4, "torchvision"), (3, "ffcv")])
def test_every_test_image_is_on_one_rank_once(ranks: int, loader: str, held_out_images: Path) -> None:
    words = ["dataset=shapes", "dataset.native_size=32", "eval_batch_size=12", "batch_size=12", f"dataloader={loader}"]
    words.append("dataloader.workers=1" if loader == "ffcv" else "dataloader.workers=0")
    plan = Plan(compose(words).config, ranks, 120)
    evaluated_indices = []
    for rank in range(ranks):
        loader = build_evaluation(
            plan,
            open_source(str(held_out_images), "evaluation", quiet),
            Ranks(rank, ranks, rank, ranks, torch.device("cpu")),
        )
        evaluated_indices += [index for _, _, indices in loader for index in np.asarray(indices).tolist()]
    assert sorted(evaluated_indices) == list(range(4 * len(CLASSES)))
