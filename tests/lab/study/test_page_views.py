"""What the page keeps in its address, says of two curves, and draws of thousands; on screen and on paper."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report_page import made_results
from lab.study.curves import Curve, StudySetting
from lab.study.results import Results, read_results
from tests.curves import curve
from tests.made_runs import MakeRun, machine
from tests.pages import act, in_browser, show

EVIL = "a&b=c#d?e%20f</script>\"'\\ é\n日本 +plus;"


@pytest.fixture
def folder(make_run: MakeRun, tmp_path: Path) -> Path:
    for recipe, gain in (("mild", 0.0), ("hot", 0.1), (EVIL, 0.2)):
        for epochs in (2, 3):
            name = f"g/{'evil &#=' if recipe == EVIL else recipe}-{epochs}"
            make_run(name, [0.3 + gain + epochs / 20] * epochs, [60.0] * epochs, recipe=recipe)
    return tmp_path / "g"


def view(chromium: Any) -> Any:
    return act(chromium, """
        const texts = (which) => [...document.querySelectorAll(which)].map((node) => node.textContent);
        return {axis: document.querySelector("input[name=axis]:checked").value, legend: texts("#legend li"),
            rows: texts("#runs tbody tr td:first-child"), words: texts("#words")[0], details: !find("details").hidden,
            title: find("details-title").textContent, lines: document.querySelectorAll("#learning path").length,
            boxes: [...document.querySelectorAll("input[name=curve]")].map((box) => [box.value, box.checked]),
            sorted: texts("th[aria-sort=descending]"), published: find("published").checked};
    """)  # fmt: skip


def test_a_link_shows_what_was_shown(folder: Path, tmp_path: Path) -> None:
    chromium = show(read_results([str(folder)], published=True), tmp_path)
    assert chromium.run("location.hash") == ""
    act(chromium, """
        document.querySelector("input[value=epochs]").click();
        find("published").click();
        document.querySelector("input[name=curve][value=hot]").click();
        document.querySelectorAll("#runs th button")[7].click();
        document.querySelectorAll("#runs th button")[7].click();
        const lists = find("pair").querySelectorAll("select");
        lists[0].focus();
        lists[0].selectedIndex = [...lists[0].options].findIndex((option) => option.text.startsWith("a&b"));
        lists[0].dispatchEvent(new Event("change"));
        [...document.querySelectorAll("#runs td button")].find((button) => button.textContent.includes("evil")).click();
    """)  # fmt: skip
    before = view(chromium)
    link = chromium.run("location.href")
    chromium.open(link)
    assert view(chromium) == before
    assert before["details"]
    assert "evil &#=" in before["title"]
    assert f"quality: {EVIL}" in before["words"]
    assert (before["axis"], before["published"], len(before["rows"]), before["lines"]) == ("epochs", True, 4, 1)
    assert [EVIL, True] in before["boxes"]
    assert ["hot", False] in before["boxes"]
    assert before["sorted"] == ["top-1 % ▼"]


def test_a_point_is_opened_from_the_address_and_closed_with_it(folder: Path, tmp_path: Path) -> None:
    chromium = show(read_results([str(folder)], published=False), tmp_path)
    act(chromium, "openPoint(shown.points[0]);")
    title = view(chromium)["title"]
    chromium.open(chromium.run("location.href"))
    assert view(chromium)["title"] == title
    act(chromium, "location.hash = '#axis=epochs'; await new Promise((done) => setTimeout(done, 100));")
    after = view(chromium)
    assert (after["axis"], after["details"]) == ("epochs", False)


def test_when_more_is_hidden_than_shown_the_address_says_what_is_shown(tmp_path: Path) -> None:
    chromium = show(made_results(300, 300), tmp_path)
    act(chromium, """
        [...document.querySelectorAll("#filter-groups button")].find((button) => button.textContent === "none").click();
        document.querySelector("input[name=curve]").click();
    """)  # fmt: skip
    assert len(chromium.run("location.hash")) < 300
    rows = view(chromium)["rows"]
    chromium.open(chromium.run("location.href"))
    assert view(chromium)["rows"] == rows
    assert len(rows) == 1


@pytest.mark.parametrize(
    "address",
    ["#", "#nonsense", "#axis=__proto__&sort=x&model=none&run=none", "#%E0%A4%A&axis=%ZZ", "#pair=[]&only=curve"],
)
def test_an_address_of_other_runs_or_of_nothing_does_no_harm(folder: Path, tmp_path: Path, address: str) -> None:
    chromium = show(read_results([str(folder)], published=True), tmp_path)
    plain = view(chromium)
    chromium.open(chromium.run("location.href").split("#")[0] + address)
    assert view(chromium) == plain


def words(tmp_path: Path, *curves: Curve) -> str:
    # note: a report is of one run at least
    results = Results(made_results(1, 1).runs, curves, [])
    return str(act(show(results, tmp_path), "return find('words').textContent;"))


def test_a_curve_that_is_ahead_throughout(tmp_path: Path) -> None:
    """To 70 % 10 minutes against 40, to 74 % 40 against 80, by hand; at 40 minutes 74 % against 70 %."""
    told = words(tmp_path, curve("fast", (10, 70), (40, 74), (160, 80)), curve("slow", (40, 70), (80, 74)))
    assert told == (
        "From 70 % to 74 %, which both reach, fast is 2x to 4x quicker: to 70 % fast takes 10 min and slow 40 min, "
        "to 74 % fast takes 40 min and slow 80 min. For 80 min fast has 77 %, 3 points more. "
        "Only fast was measured above 74 %, up to 80 %."
    )


def test_curves_that_cross(tmp_path: Path) -> None:
    """Halfway in quality, at the square root of the costs' product: 40 minutes for both."""
    told = words(tmp_path, curve("early", (10, 60), (160, 70)), curve("late", (20, 60), (80, 70)))
    assert told.startswith(
        "From 60 % to 70 %, which both reach, they cross at 65 % (40 min): at 60 % early is 2x quicker, "
        "at 70 % late is 2x quicker."
    )
    gain = 10 - 10 * math.log(80 / 10) / math.log(16)
    assert f"For 80 min late has 70 %, {gain:g} points more." in told


def test_curves_without_a_common_quality_and_of_two_machines(tmp_path: Path) -> None:
    there = StudySetting("shapes", "resnet18", "8x other")
    told = words(tmp_path, curve("low", (10, 60), (20, 62)), curve("high", (15, 70), (30, 72), setting=there))
    assert told == (
        "Different machine: the recipe is not the only difference. They reach no common quality: "
        "low, 1x cpu has 60 % to 62 % for 10 min to 20 min, high, 8x other has 70 % to 72 % for 15 min to 30 min."
    )


def test_a_curve_that_falls_is_read_at_its_first_reach(tmp_path: Path) -> None:
    """To 60 % its 10 minutes against 20; beyond, from 20 minutes at 58 %: to 61 % 28.3 minutes for both."""
    told = words(tmp_path, curve("falls", (10, 60), (20, 58), (40, 64)), curve("plain", (20, 60), (80, 64)))
    assert told.startswith(
        "From 60 % to 64 %, which both reach, they cross at 60 % (10 min), 61 % (28.3 min): "
        "at 60 % falls is 2x quicker, at 64 % falls is 2x quicker."
    )


def test_equal_curves_cost_the_same(tmp_path: Path) -> None:
    told = words(tmp_path, curve("one", (10, 60), (20, 62)), curve("two", (10, 60), (20, 62)))
    assert "they cost the same" in told


def test_thousands_of_runs_make_few_nodes_and_lose_none(tmp_path: Path) -> None:
    chromium = show(made_results(2000, 2000), tmp_path)
    answer = act(chromium, """
        find("published").click();
        const looks = [...document.querySelectorAll("#tradeoff .curve")];
        const sum = looks.reduce((count, node) => count + Number(node.dataset.points), 0);
        const rows = () => document.querySelectorAll("#runs tbody tr").length;
        const first = rows();
        find("more").click();
        return {sum, nodes: document.querySelectorAll("#tradeoff *").length, first, rows: rows(),
            caption: find("runs-caption").textContent, legend: find("legend").lastChild.textContent,
            said: find("said").textContent};
    """)  # fmt: skip
    assert (answer["sum"], answer["first"], answer["rows"]) == (2000, 50, 100)
    assert answer["nodes"] < 600
    assert (answer["caption"], answer["said"]) == (
        "2000 of 2000 runs, the first 100 here",
        "2000 points, 2000 runs shown",
    )
    assert answer["legend"].startswith("and 1960 more")


def test_a_front_across_machines_is_switched_on_and_said(make_run: MakeRun, tmp_path: Path) -> None:
    for name, price in (("slow", 1.0), ("fast", 4.0)):
        make_run(f"g/{name}", (0.5, 0.6), (60.0 / price,) * 2, hardware=machine(name, price))
    answer = in_browser(tmp_path / "g", tmp_path, """
        const fronts = () => document.querySelectorAll("#tradeoff .front").length;
        const list = document.querySelector("select[name=hardware]");
        list.selectedIndex = 2;
        list.dispatchEvent(new Event("change"));
        const apart = [fronts(), find("front-of").textContent];
        document.querySelector("input[name=across][value=hardware]").click();
        const axis = document.querySelector("input[name=axis]:checked").value;
        const across = [fronts(), find("front-of").textContent];
        document.querySelector("input[value=time]").click();
        return {apart, axis, across, time: find("front-of").textContent, hash: location.hash};
    """, published=False)  # fmt: skip
    assert answer["apart"] == [2, "one for each data set, model, machine"]
    assert answer["across"] == [1, "across machines, one for each data set, model"]
    assert answer["axis"] == "money"
    assert "a faster machine looks like a faster recipe" in answer["time"]
    assert "across=hardware" in answer["hash"]


def test_across_data_sets_the_published_points_are_shown(folder: Path, tmp_path: Path) -> None:
    answer = in_browser(folder, tmp_path, """
        const before = shown.points.length;
        document.querySelector("input[name=across][value=dataset]").click();
        return {before, after: shown.points.length, published: find("published").checked};
    """)  # fmt: skip
    assert answer["before"] == 6
    assert answer["after"] > 6
    assert answer["published"]


def test_the_screen_follows_the_system_and_paper_is_light(folder: Path, tmp_path: Path) -> None:
    chromium = show(read_results([str(folder)], published=False), tmp_path, dark=True)
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = chromium.run(paper)
    chromium.call(
        "Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}]
    )
    printed = chromium.run(f"[{paper}, getComputedStyle(find('controls')).display, find('runs').checkVisibility()]")
    chromium.look()
    assert dark == "rgb(22, 24, 27)"
    assert printed == ["rgb(255, 255, 255)", "none", True]
