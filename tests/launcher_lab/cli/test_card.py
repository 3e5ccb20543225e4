"""`train report RUN -o README.md`: its metadata, read by Hugging Face's library, and its text."""

import json
from pathlib import Path

from huggingface_hub import ModelCard
from scipy.stats import binomtest

from launcher.records.metrics import read_metrics
from tests.commands import output_of, refused
from tests.runs import Here


def test_the_card_has_metrics_recipe_versions_and_the_command_without_paths(here: Here) -> None:
    run = here.small("a", "epochs=2", "hardware=this_machine", "hardware.price_per_hour=3600")
    facts = json.loads((run / "environment.json").read_text())
    facts["command"] = ["/bin/train", "recipe=mild", f"runs={here.folder}/runs", "--data", f"{here.folder}/images"]
    (run / "environment.json").write_text(json.dumps(facts))
    file = here.folder / "README.md"
    write = ("report", str(run), "-o", str(file))
    assert output_of(*write) == f"{file}\n"
    text = file.read_text()
    rows = read_metrics(run / "metrics.jsonl")
    last = [row for row in rows if row["kind"] == "eval"][-1]
    card = ModelCard(text, ignore_metadata_errors=False)
    results = {result.metric_name: result for result in card.data.eval_results}
    assert results["top-1"].metric_type == "accuracy"
    assert {result.metric_value for result in results.values()} == {*last["metrics"].values()}
    assert (results["top-1"].dataset_name, results["top-1"].dataset_split) == ("shapes", "validation")
    assert (card.data.model_name, card.data.pipeline_tag) == ("a", "image-classification")
    assert card.data.license is None
    share = last["metrics"]["top1"]
    low, high = binomtest(round(share * 50), 50).proportion_ci(method="wilson")
    assert f"| top-1 | {share:.2%} | {low:.2%} to {high:.2%} | validation | 50 |" in text
    facts = ("recipe | mild", "epochs | 2 of 2", "seed | 42", "training | 96 images", "torch | ", "cost of training | ")
    for expected in (*facts, "    train recipe=mild runs=PATH --data PATH\n"):
        assert expected in text, expected
    assert str(here.folder) not in text
    assert json.loads(output_of(*write, "--json")) == {"files": [str(file)], "runs": [str(run)], "points": 0}
    assert file.read_text() == text
    with (run / "metrics.jsonl").open("a") as records:
        records.write(json.dumps({**last, "train_seconds": "nan"}) + "\n")
    assert "is damaged: metrics.jsonl: a record has a wrong value: eval" in refused(*write)
    (run / "metrics.jsonl").write_bytes(b"".join((run / "metrics.jsonl").read_bytes().splitlines(True)[:-1]))
    output_of(*write)
    assert file.read_text() == text
    (run / "environment.json").write_text("[]")
    output_of(*write)
    assert "| environment | unknown |" in file.read_text()


def test_a_run_without_an_evaluation_is_refused(here: Here, tmp_path: Path) -> None:
    run = here.small("a", "epochs=2")
    lines = [line for line in (run / "metrics.jsonl").read_text().splitlines() if '"kind": "e' not in line]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    card = ("-o", str(tmp_path / "README.md"))
    assert "has no evaluation yet; type train resume" in refused("report", str(run), *card)
    assert "--output=" in refused("report", str(run), "-o", str(tmp_path / "no" / "a.md"))
    assert "is of one run; pass that run" in refused("report", str(run), str(run), *card)
    assert "is of one run; pass that run" in refused("report", str(run), *card, "-o", str(tmp_path / "a.html"))
    for verb, file in (("model_card", "README.md"), ("card", "README.md"), ("mlperf", "mlperf.log")):
        assert f"type train report RUN -o {file}\n" in refused(verb, str(run))
