"""The report page, in a headless browser and as text."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from launcher_lab.study.report import page, page_data
from launcher_lab.study.results import read_results
from tests.commands import output_of, refused
from tests.made_runs import MakeRun
from tests.pages import in_browser

DRAWN = """
    const curves = () => [...document.querySelectorAll("#tradeoff .curve")];
    const drawn = () => curves().reduce((sum, node) => sum + Number(node.dataset.points), 0);
"""
EVIL = "</script><script>document.title='evil'</script><img src=x onerror=1>"


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


@pytest.mark.slow
def test_the_page_shows_points_runs_and_states(folder: Path) -> None:
    result = in_browser(folder, DRAWN + """
        const own = drawn();
        find("published").click();
        return {own, points: drawn(),
                lines: document.querySelectorAll("#learning path").length,
                rows: document.querySelectorAll("#runs tbody tr").length,
                odd: [...document.querySelectorAll("tr.odd-state")].map((row) => row.lastChild.textContent),
                title: document.title, images: document.images.length,
                summary: find("summary").textContent};
    """)  # fmt: skip
    published = sum(len(curve["points"]) for curve in data_of(folder)["curves"] if curve["published"])
    # note: these runs use other images than the published ones, which are hidden at first
    assert (result["own"], result["points"]) == (5, 5 + published)
    assert (result["lines"], result["rows"], result["images"]) == (11, 11, 0)
    assert result["title"] == "a report"
    assert sorted(result["odd"]) == ["damaged: config.yaml:2: did not find expected node content", "unfinished"]
    assert set(result["summary"].split(".")[0].split(", ")) == {"9 finished", "1 unfinished", "1 damaged"}


def data_of(folder: Path) -> dict[str, Any]:
    return page_data(read_results([str(folder)], published=True), "today")


@pytest.mark.slow
def test_runs_of_another_task_have_its_metric_and_no_published_points(make_run: MakeRun, tmp_path: Path) -> None:
    for seed in (0, 1):
        metrics = make_run(f"g/{seed}", (0.5, 0.25), seed=seed) / "metrics.jsonl"
        metrics.write_text(metrics.read_text().replace('"top1"', '"mae"'))
    result = in_browser(tmp_path / "g", """
        const all = document.body.textContent;
        return {axis: [...document.querySelectorAll("#tradeoff text")].map((text) => text.textContent).includes("MAE"),
                heads: [...document.querySelectorAll("#runs th")].map((head) => head.textContent),
                others: all.includes("top-1") || all.includes("Top-1")};
    """)  # fmt: skip
    assert (result["axis"], result["others"]) == (True, False)
    assert any(head == "MAE" for head in result["heads"])
    assert not any(curve["published"] for curve in data_of(tmp_path / "g")["curves"])


@pytest.mark.slow
def test_axes_and_filters_change_the_points_shown(folder: Path) -> None:
    result = in_browser(folder, DRAWN + """
        const own = drawn;
        const axisText = () => [...document.querySelectorAll("#tradeoff text")].map((text) => text.textContent);
        const seen = {};
        seen.own = own();
        document.querySelector("input[value=epochs]").click(); seen.epochs = axisText().includes("epochs");
        document.querySelector("input[value=money]").click(); seen.money = own();
        document.querySelector("input[value=time]").click();
        document.querySelector("input[name=curve][value=hot]").click(); seen.withoutHot = own();
        seen.rowsWithoutHot = document.querySelectorAll("#runs tbody tr").length;
        document.querySelector("input[name=epochs][value='2']").click(); seen.withoutTwo = own();
        seen.front = document.querySelectorAll("#tradeoff .front").length;
        seen.status = find("status").textContent;
        return seen;
    """)  # fmt: skip
    assert (result["own"], result["epochs"], result["money"]) == (5, True, 1)
    assert (result["withoutHot"], result["rowsWithoutHot"], result["withoutTwo"]) == (3, 7, 1)
    assert result["front"] == 1
    assert result["status"] == "1 point, 2 runs shown"


@pytest.mark.slow
def test_the_keyboard_selects_opens_and_closes_a_point(folder: Path) -> None:
    """Arrow keys move between points from the one where Tab stops."""
    first, second, open_, closed = in_browser(folder, """
        const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
        const state = () => ({at: document.activeElement.getAttribute("aria-label"),
            status: find("status").textContent});
        const seen = [];
        document.querySelector("#tradeoff [tabindex='0']").focus();
        seen.push(state().at);
        press("ArrowRight");
        seen.push(state());
        ["ArrowLeft", "ArrowRight", "Enter"].forEach(press);
        seen.push({shown: !find("details").hidden, focused: document.activeElement.id,
            all: find("details").textContent, lines: document.querySelectorAll("#learning path").length});
        press("Escape");
        seen.push({closed: find("details").hidden, ...state()});
        return seen;
    """)  # fmt: skip
    assert first.startswith(EVIL)
    assert second["at"] == "mild: 60.5 ± 0.71 % top-1, 2 ± 0 training time, minutes, 2 epochs"
    assert second["status"] == second["at"] == closed["at"]
    assert closed["closed"]
    assert (open_["shown"], open_["focused"], open_["lines"]) == (True, "details", 2)
    assert "train recipe=mild run_name=g/" in open_["all"]
    assert 'algorithms.ema.half_life: "100ba"' in open_["all"]


@pytest.mark.slow
def test_the_mouse_selects_the_nearest_point(folder: Path) -> None:
    result = in_browser(folder, """
        const ring = document.querySelector("#tradeoff .point").getBoundingClientRect();
        const at = {clientX: ring.left + ring.width / 2 + 9, clientY: ring.top + ring.height / 2 - 9, bubbles: true};
        const chart = document.querySelector("#tradeoff svg");
        chart.dispatchEvent(new PointerEvent("pointermove", at));
        const tip = document.querySelector("#tradeoff .hover title").textContent;
        chart.dispatchEvent(new MouseEvent("click", at));
        return {tip, title: find("details-title").textContent};
    """)  # fmt: skip
    assert result["tip"].startswith(EVIL)
    assert result["title"] == f"{EVIL}, 2 epochs"


@pytest.fixture
def two_sets(make_run: MakeRun, tmp_path: Path) -> Path:
    """Four runs of two recipes on flowers, two of a third recipe and another model on cars, and a damaged one."""
    cars = {"name": f"cars{'_and_more' * 9}"}
    for epochs in (2, 3):
        for recipe in ("mild", "hot"):
            make_run(
                f"g/{recipe}-{epochs}", [0.5] * epochs, [60.0] * epochs, recipe=recipe, dataset={"name": "flowers"}
            )
        name = f"g/cars_{'and_more_' * 9}{epochs}"
        make_run(name, [0.1] * epochs, [60.0] * epochs, recipe="medium", dataset=cars, model={"name": "resnet50"})
    (make_run("g/torn") / "config.yaml").write_text("{")
    return tmp_path / "g"


SHOWN = (
    DRAWN
    + """
    const texts = (which) => [...document.querySelectorAll(which)].map((node) => node.textContent);
    const right = () => document.documentElement.clientWidth + 0.5;
    const beyond = () => [...document.body.querySelectorAll("*")].map((node) => [node.getBoundingClientRect(), node])
        .filter(([box, node]) => box.right > right() && node.checkVisibility()).map(([, node]) => node.outerHTML);
    const count = (which) => document.querySelectorAll(which).length;
    const shown = () => ({curves: texts("#legend li:not(.of-front)"), filters: texts(".choices label"),
        beyond: beyond(),
        points: drawn(), fronts: count("#tradeoff .front"), rows: count("#runs tbody tr"),
        lists: [...document.querySelectorAll("#setting select")].map((list) => list.value), scope: texts("#scope")[0]});
    const choose = (key, at) => {
        const list = document.querySelector(`select[name=${key}]`);
        list.selectedIndex = at;
        list.dispatchEvent(new Event("change"));
        return shown();
    };
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 768, 1400])
def test_a_list_selects_the_data_set_and_nothing_overflows_the_page(two_sets: Path, width: int) -> None:
    result = in_browser(two_sets, SHOWN + """
        find("filters").open = true;
        const first = shown();
        const names = texts("select[name=dataset] option");
        document.querySelector("#runs td button").click();
        const cars = choose("dataset", names.findIndex((name) => name.includes("cars")));
        choose("model", 2);
        const all = choose("dataset", 2);
        document.querySelector("#runs td button").click();
        return {names, first, cars, all, open: beyond()};
    """, width=width)  # fmt: skip
    first, cars, all_ = (result[key] for key in ("first", "cars", "all"))
    place = next(name for name in cars["lists"] if "cars" in name)
    assert sorted(result["names"]) == sorted([f"{place} (2 runs)", "flowers (4 runs)", "all, each with its own front"])
    # note: the damaged run has no data set, and is shown with each
    assert (first["curves"], first["fronts"], first["points"], first["rows"]) == (["hot", "mild"], 1, 4, 5)
    assert first["lists"] == ["flowers", "resnet18"]
    assert (cars["curves"], cars["fronts"], cars["points"], cars["rows"]) == (["medium"], 1, 2, 3)
    assert cars["lists"] == [place, "resnet50"]
    assert cars["scope"] == f"{place}, resnet50"
    assert "medium" in cars["filters"]
    assert "hot" not in cars["filters"]
    assert all_["curves"] == ["hot, flowers, resnet18", f"medium, {place}, resnet50", "mild, flowers, resnet18"]
    assert (all_["fronts"], all_["points"], all_["rows"], all_["scope"]) == (2, 6, 7, "")
    assert [first["beyond"], cars["beyond"], all_["beyond"], result["open"]] == [[], [], [], []]


@pytest.mark.slow
def test_one_data_set_has_no_list(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("g/one")
    assert in_browser(tmp_path / "g", "return find('setting').offsetParent;") is None


@pytest.mark.slow
def test_error_bars_stay_inside_the_chart_and_unused_controls_are_hidden(make_run: MakeRun, tmp_path: Path) -> None:
    for seed, seconds in ((0, 10.0), (1, 100.0)):
        make_run(f"g/{seed}", (0.5, 0.6), (seconds, seconds), seed=seed)
    result = in_browser(tmp_path / "g", """
        const box = document.querySelector("#tradeoff svg").getBoundingClientRect();
        const bars = [...document.querySelectorAll("#tradeoff .bars")].map((path) => path.getBoundingClientRect());
        const inside = bars.every((bar) => bar.left >= box.left && bar.right <= box.right);
        return {bars: bars.length, inside, published: find("published").offsetParent !== null};
    """, published=False)  # fmt: skip
    assert result == {"bars": 1, "inside": True, "published": False}


@pytest.mark.slow
def test_one_evaluation_is_a_dot_and_the_page_has_a_dark_mode(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("g/short", (0.5,), (60.0,))
    result = in_browser(tmp_path / "g", """
        const dot = document.querySelector("#learning path");
        const legend = find("legend");
        return {dot: dot !== null && dot.getBoundingClientRect().width > 0,
                whole: legend.scrollHeight <= legend.clientHeight,
                dark: [...document.styleSheets[0].cssRules].some((rule) => /scheme: dark/.test(rule.conditionText))};
    """, published=False)  # fmt: skip
    assert result == {"dot": True, "whole": True, "dark": True}


@pytest.mark.slow
def test_money_is_not_offered_if_only_published_points_have_a_price(make_run: MakeRun) -> None:
    folder = make_run("free")
    assert any(point["cost"].get("money") for curve in data_of(folder)["curves"] for point in curve["points"])
    result = in_browser(folder, "return [...document.querySelectorAll('#axes input')].map((e) => e.value);")
    assert result == ["time", "wall", "epochs"]


def test_the_page_needs_no_network_and_text_of_runs_is_never_markup(folder: Path) -> None:
    text = page(read_results([str(folder)], published=True), title=EVIL, written="today")
    links = set(re.findall(r"https?://[^\"'\s)]+", text))
    assert links == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|iframe)|src=[\"']|@import|url\(", text.split('id="data">')[0])
    assert text.count("<script") == 2
    assert EVIL not in text
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert data
    assert EVIL in json.dumps([run["curve"] for run in json.loads(data[1])["runs"]])


def test_long_learning_curves_are_thinned_and_keep_ends_and_peaks(make_run: MakeRun, tmp_path: Path) -> None:
    top1 = [0.3 + (n % 7) / 100 for n in range(2000)]
    top1[1234], top1[777] = 0.9, 0.1
    make_run("g/long", top1, [10.0] * 2000)
    epochs, shown = page_data(read_results([str(tmp_path / "g")], published=False), "today")["runs"][0]["learning"]
    assert len(epochs) <= 400
    assert (epochs[0], epochs[-1]) == (1, 2000)
    assert {1235: 90.0, 778: 10.0}.items() <= dict(zip(epochs, shown, strict=True)).items()
    assert sorted(epochs) == epochs


def test_report_writes_page_and_image(folder: Path, tmp_path: Path) -> None:
    outputs = [tmp_path / name for name in ("r.html", "r.png", "r.pdf", "r.svg")]
    assert "11 runs, 5 points" in output_of(
        "report", str(folder), *(word for path in outputs for word in ("-o", str(path)))
    )
    assert [file.read_bytes()[:5] for file in outputs[1:]] == [b"\x89PNG\r", b"%PDF-", b"<?xml"]
    assert "<svg" in outputs[3].read_text()
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
