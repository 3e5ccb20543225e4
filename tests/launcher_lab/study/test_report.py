"""The report: one page in a real browser, its size, and its text."""

import builtins
import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chromium import evaluated, installed
from launcher_lab.study.report import content
from launcher_lab.study.results import read_results
from tests.commands import output_of, refused
from tests.curves import made_results
from tests.made_runs import MakeRun

EVIL = "</script><script>document.title='evil'</script><img src=x onerror=1>"
# The points that are drawn, with their numbers and places, and the rows that are shown.
DRAWN = """
    const view = await drawn;
    const marks = (word) => [...document.querySelectorAll(`#charts [aria-roledescription=${word}]`)];
    const rows = () => [...document.querySelectorAll("#runs tbody tr")].filter((row) => !row.hidden).length;
    const click = (node) => node.dispatchEvent(new MouseEvent("click", {bubbles: true}));
    const shown = async () => { await view.runAsync();
        return {points: marks("point").length, rows: rows()}; };
"""


@pytest.fixture
def folder(make_run: MakeRun, tmp_path: Path) -> Path:
    for seed in (0, 1):
        for epochs in (2, 3):
            top1 = [0.5 + epochs / 20 + seed / 100] * epochs
            make_run(f"g/mild-{epochs}-{seed}", top1, [60.0] * epochs, seed=seed)
            make_run(f"g/hot-{epochs}-{seed}", [t + 0.05 for t in top1], [90.0] * epochs, seed=seed, recipe="hot")
    make_run("g/running", finished=None, seed=5)
    make_run("g/evil", (0.9, 0.95), seed=0, recipe=EVIL, hardware={"name": "this_machine", "price_per_hour": 6.0})
    (make_run("g/torn") / "config.yaml").write_text("{")
    return tmp_path / "g"


def html(folder: Path, **words: Any) -> str:
    return content(read_results([str(folder)], published=True), ".html", title=EVIL, **words).decode()


def spec_of(page: str) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(page.partition('draw("')[2].partition('", ')[2].partition(");\n")[0])
    return spec


@pytest.mark.slow
def test_a_click_on_a_point_shows_its_runs_and_the_cost_can_be_switched(folder: Path) -> None:
    if installed() is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    result = evaluated(html(folder), DRAWN + """
        const seen = {first: await shown(), title: document.title, images: document.images.length};
        click(marks("point")[1]);
        seen.clicked = await shown();
        view.signal("axis", "money");
        seen.money = await shown();
        seen.words = document.querySelector("#runs pre").textContent;
        seen.inputs = [...document.querySelectorAll(".vega-bind input[type=radio]")].map((one) => one.value);
        document.querySelector("#runs th").click();
        seen.sorted = document.querySelector("#runs summary").textContent;
        return seen;
    """)  # fmt: skip
    assert (result["first"]["rows"], result["clicked"]["rows"]) == (11, 2)
    assert result["first"]["points"] > result["money"]["points"] > 0
    assert (result["title"], result["images"]) == (EVIL, 0)
    assert result["inputs"] == ["time", "wall", "money", "epochs"]
    assert "train recipe=mild run_name=g/" in result["words"]
    assert result["sorted"].endswith("evil")


def test_the_page_needs_no_network_and_text_of_runs_is_never_markup(folder: Path) -> None:
    text = html(folder)
    assert "default-src 'none'" in text
    assert not re.search(r"<(link|img|iframe)|src=[\"']|@import|url\(", text)
    assert text.count("<script") == 1
    assert EVIL not in text
    assert "damaged: config.yaml:2: did not find expected node content" in text


@pytest.mark.slow
def test_a_page_of_two_thousand_runs_is_small() -> None:
    assert len(content(made_results(2000, 30), ".html", title="many")) < 1_500_000


def test_where_lower_is_better_the_axis_and_the_front_are_reversed(make_run: MakeRun, tmp_path: Path) -> None:
    for epochs, value in ((1, 12.0), (2, 8.0)):
        metrics = make_run(f"g/{epochs}", (value,) * epochs, (60.0,) * epochs) / "metrics.jsonl"
        metrics.write_text(metrics.read_text().replace('"top1"', '"perplexity"'))
    text = json.dumps(spec_of(html(tmp_path / "g", axis="epochs")))
    points = re.findall(r'"quality": ([-\d.]+), "deviation": 0.0, "good": ([-\d.]+)', text)
    assert points == [("12.0", "-12.0"), ("8.0", "-8.0")]
    assert '"reverse": true' in text
    assert '"title": "perplexity"' in text


def test_long_learning_curves_are_thinned_and_keep_ends_and_peaks(make_run: MakeRun, tmp_path: Path) -> None:
    top1 = [0.3 + (n % 7) / 100 for n in range(2000)]
    top1[1234], top1[777] = 0.9, 0.1
    make_run("g/long", top1, [10.0] * 2000)
    rows = spec_of(html(tmp_path / "g"))["vconcat"][1]["data"]["values"]
    shown = {row["e"]: row["q"] for row in rows}
    assert len(shown) <= 400
    assert {1, 2000} <= shown.keys()
    assert {1235: 90.0, 778: 10.0}.items() <= shown.items()


def test_report_writes_page_and_image(folder: Path, tmp_path: Path) -> None:
    outputs = [tmp_path / name for name in ("r.html", "r.png", "r.pdf", "r.svg")]
    words = ["report", str(folder), *(word for path in outputs for word in ("-o", str(path)))]
    outputs[0].write_text(html(folder))  # note: it replaces a page that it has written
    assert "11 runs, 5 points" in output_of(*words)
    assert [file.read_bytes()[:4] for file in outputs[1:]] == [b"\x89PNG", b"%PDF", b"<svg"]
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("r.jpg", "must end in one of .html, .png, .pdf, .svg"),
        ("nowhere/r.html", "its folder does not exist"),
        (f"{'b' * 300}/r.html", "its folder does not exist"),
        (f"{'b' * 300}.html", "cannot be written"),
    ],
)
def test_an_invalid_output_is_a_one_line_error(folder: Path, output: str, message: str) -> None:
    assert message in refused("report", str(folder), "-o", output)


def test_a_missing_package_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "altair":
            raise ModuleNotFoundError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    line = "error: --output=r.html: needs the packages of the report; run pip install altair vl-convert-python\n"
    assert refused("report", str(folder), "-o", "r.html") == line


def test_one_run_is_drawn_as_its_learning_curve(make_run: MakeRun) -> None:
    svg = content(read_results([str(make_run("one"))], published=False), ".svg", title="alone").decode()
    assert "epochs" in svg
    assert "minutes" not in svg
