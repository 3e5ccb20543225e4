"""index.html of a run folder: written at the end of a run, by `train report RUN` and after `eval --by-class`."""

import json
from pathlib import Path

import pytest

from launcher.records.run_folder import RunFolder
from tests.commands import output_of, refused
from tests.html import Page
from tests.runs import Here

EVIL = '<script>alert("x")</script>'


def test_a_run_ends_with_its_page_and_eval_adds_the_errors(here: Here) -> None:
    run = here.small("a", "epochs=2")
    page = Page(run / "index.html")
    text = "\n".join(page.texts)
    assert "script" not in page.tags
    for expected in ("top-1", "finished", "train resume runs/a epochs=4", "train export runs/a", "optimizer.lr",
                     "resnet18", "torch", "unknown: this machine has no price"):  # fmt: skip
        assert expected in text, expected
    assert "confusion" not in text
    assert origins(page) >= {
        ("optimizer.lr", "recipe mild"),
        ("model.name", "command line"),
        ("eval_every", "defaults"),
    }
    here("eval", "runs/a", "--by-class")
    page = Page(run / "index.html")
    assert "the worst 10 classes" in page.texts
    assert {source[:22] for source in page.sources} == {"data:image/png;base64,"}


def test_a_resume_is_the_origin_of_what_it_changes(here: Here) -> None:
    run = here.small("a", "epochs=2")
    here("resume", "runs/a", "epochs=3")
    assert origins(Page(run / "index.html")) >= {("epochs", "train resume"), ("optimizer.lr", "recipe mild")}
    (run / "origins.json").write_text("[]")
    output_of("report", str(run))
    assert "optimizer.lr" in Page(run / "index.html").texts


def origins(page: Page) -> set[tuple[str, str]]:
    """Return each text with the next but one, as keys stand beside their origins."""
    return {(first, last) for first, last in zip(page.texts, page.texts[2:], strict=False)}


def test_a_page_that_cannot_be_written_is_a_warning(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: RunFolder) -> None:
        raise ValueError("no colour left")

    monkeypatch.setattr("launcher.publish.run_page.write_page", fail)
    run = here.small("a", "epochs=2")
    assert "warning: cannot write the page of the run: no colour left" in (run / "logs" / "rank-0.log").read_text()
    assert not (run / "index.html").exists()


def test_names_are_escaped_and_only_a_page_is_replaced(here: Here) -> None:
    run = here.small("a", "epochs=2")
    facts = json.loads((run / "environment.json").read_text())
    (run / "environment.json").write_text(json.dumps(facts | {"host": EVIL, "command": ["train", EVIL]}))
    (run / "by_class.csv").write_text(f"name,images\n{EVIL},1\n")
    assert output_of("report", str(run)).strip() == str(run / "index.html")
    page = Page(run / "index.html")
    assert "script" not in page.tags
    assert page.texts.count(EVIL) == 2
    (run / "environment.json").write_text("[]")
    output_of("report", str(run))
    (run / "index.html").write_text("<p>my own</p>")
    assert "exists and is no output of this version of train" in refused("report", str(run))
    assert Path(run, "index.html").read_text() == "<p>my own</p>"
