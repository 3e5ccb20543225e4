"""The page's address, its comparison of two curves, pages of thousands of runs, and printing."""

import math
from pathlib import Path

import pytest

from launcher.results.curves import Curve, StudySetting
from launcher_lab.study.results import Results
from tests.curves import curve, made_results
from tests.made_runs import MakeRun, machine
from tests.pages import act, in_browser

pytestmark = pytest.mark.slow

EVIL = "a&b=c#d?e%20f</script>\"'\\ é\n日本 +plus;"


@pytest.fixture
def folder(make_run: MakeRun, tmp_path: Path) -> Path:
    for recipe, gain in (("mild", 0.0), ("hot", 0.1), (EVIL, 0.2)):
        for epochs in (2, 3):
            name = f"g/{'evil &#=' if recipe == EVIL else recipe}-{epochs}"
            make_run(name, [0.3 + gain + epochs / 20] * epochs, [60.0] * epochs, recipe=recipe)
    return tmp_path / "g"


VIEW = """
    const texts = (which) => [...document.querySelectorAll(which)].map((node) => node.textContent);
    const view = () => ({axis: document.querySelector("input[name=axis]:checked").value,
        legend: texts("#legend li:not(.of-front)"),
        rows: texts("#runs tbody tr td:first-child"), words: texts("#words")[0], details: !find("details").hidden,
        title: find("details-title").textContent, lines: document.querySelectorAll("#learning path").length,
        boxes: [...document.querySelectorAll("input[name=curve]")].map((box) => [box.value, box.checked]),
        sorted: texts("th[aria-sort=descending]"), published: find("published").checked});
"""


def test_a_link_shows_the_same_view(folder: Path) -> None:
    start, before, link = in_browser(folder, VIEW + """
        const start = location.hash;
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
        return [start, view(), location.hash];
    """)  # fmt: skip
    assert start == ""
    assert in_browser(folder, VIEW + "return view();", at=link) == before
    assert before["details"]
    assert "evil &#=" in before["title"]
    assert f"quality: {EVIL}" in before["words"]
    assert (before["axis"], before["published"], len(before["rows"]), before["lines"]) == ("epochs", True, 4, 1)
    assert [EVIL, True] in before["boxes"]
    assert ["hot", False] in before["boxes"]
    assert before["sorted"] == ["top-1 % ▼"]


def test_with_most_curves_hidden_the_address_lists_the_visible_ones() -> None:
    results = made_results(300, 300)
    rows, link = act(results, VIEW + """
        [...document.querySelectorAll("#filter-groups button")].find((button) => button.textContent === "none").click();
        document.querySelector("input[name=curve]").click();
        return [view().rows, location.hash];
    """)  # fmt: skip
    assert len(link) < 300
    assert act(results, VIEW + "return view();", at=link)["rows"] == rows
    assert len(rows) == 1


@pytest.mark.parametrize(
    "address",
    ["#", "#nonsense", "#axis=__proto__&sort=x&model=none&run=none", "#%E0%A4%A&axis=%ZZ", "#pair=[]&only=curve"],
)
def test_an_address_with_unknown_values_shows_the_default_view(folder: Path, address: str) -> None:
    plain, strange = (in_browser(folder, VIEW + "return view();", at=at) for at in ("", address))
    assert strange == plain


def words(*curves: Curve) -> str:
    # note: a report needs at least one run
    results = Results(made_results(1, 1).runs, curves, [])
    return str(act(results, "return find('words').textContent;"))


def test_a_curve_that_is_always_ahead() -> None:
    """By hand: 10 against 40 minutes for 70 %, 40 against 80 for 74 %; at 40 minutes 74 % against 70 %."""
    text = words(curve("fast", (10, 70), (40, 74), (160, 80)), curve("slow", (40, 70), (80, 74)))
    assert text == (
        "Between 70 % and 74 % fast is 2x to 4x faster: fast reaches 70 % at 10 min, slow at 40 min; "
        "fast reaches 74 % at 40 min, slow at 80 min. At 80 min fast has 77 %, 3 points more. "
        "Only fast was measured above 74 %, up to 80 %."
    )


def test_curves_that_cross() -> None:
    """They cross halfway in quality, at the geometric mean of the costs: 40 minutes."""
    text = words(curve("early", (10, 60), (160, 70)), curve("late", (20, 60), (80, 70)))
    assert text.startswith(
        "Between 60 % and 70 % they cross at 65 % (40 min): at 60 % early is 2x faster, at 70 % late is 2x faster."
    )
    gain = 10 - 10 * math.log(80 / 10) / math.log(16)
    assert f"At 80 min late has 70 %, {gain:g} points more." in text


def test_curves_without_a_common_quality_and_of_two_machines() -> None:
    there = StudySetting("shapes", "resnet18", "8x other")
    text = words(curve("low", (10, 60), (20, 62)), curve("high", (15, 70), (30, 72), setting=there))
    assert text == (
        "Different machine: the recipe is not the only difference. They reach no common quality: "
        "low, 1x cpu has 60 % to 62 % at 10 min to 20 min; high, 8x other has 70 % to 72 % at 15 min to 30 min."
    )


def test_a_falling_curve_counts_where_it_first_reaches_a_quality() -> None:
    """By hand: 10 against 20 minutes for 60 %; later, from 58 % at 20 minutes, both need 28.3 minutes for 61 %."""
    text = words(curve("falls", (10, 60), (20, 58), (40, 64)), curve("plain", (20, 60), (80, 64)))
    assert text.startswith(
        "Between 60 % and 64 % they cross at 60 % (10 min), 61 % (28.3 min): "
        "at 60 % falls is 2x faster, at 64 % falls is 2x faster."
    )


def test_a_page_of_thousands_of_runs_has_few_nodes_and_all_points() -> None:
    result = act(made_results(2000, 2000), """
        find("published").click();
        const looks = [...document.querySelectorAll("#tradeoff .curve")];
        const sum = looks.reduce((count, node) => count + Number(node.dataset.points), 0);
        const rows = () => document.querySelectorAll("#runs tbody tr").length;
        const first = rows();
        find("more").click();
        return {sum, nodes: document.querySelectorAll("#tradeoff *").length, first, rows: rows(),
            caption: find("runs-caption").textContent, legend: find("legend").lastChild.textContent,
            status: find("status").textContent};
    """)  # fmt: skip
    assert (result["sum"], result["first"], result["rows"]) == (2000, 50, 100)
    assert result["nodes"] < 600
    assert (result["caption"], result["status"]) == (
        "2000 of 2000 runs, showing the first 100",
        "2000 points, 2000 runs shown",
    )
    assert result["legend"].startswith("and 1960 more")


def test_a_switch_shows_one_front_across_machines_with_a_warning(make_run: MakeRun, tmp_path: Path) -> None:
    for name, price in (("slow", 1.0), ("fast", 4.0)):
        make_run(f"g/{name}", (0.5, 0.6), (60.0 / price,) * 2, hardware=machine(name, price))
    result = in_browser(tmp_path / "g", """
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
    assert result["apart"] == [2, "one for each data set, model, machine"]
    assert result["across"] == [1, "across machines, one for each data set, model"]
    assert result["axis"] == "money"
    assert "a faster machine looks like a faster recipe" in result["time"]
    assert "across=hardware" in result["hash"]


def test_across_data_sets_the_published_points_are_shown(folder: Path) -> None:
    result = in_browser(folder, """
        const before = shown.points.length;
        document.querySelector("input[name=across][value=dataset]").click();
        return {before, after: shown.points.length, published: find("published").checked};
    """)  # fmt: skip
    assert result["before"] == 6
    assert result["after"] > 6
    assert result["published"]


def test_the_page_follows_the_dark_mode(folder: Path) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor;"
    colours = [in_browser(folder, paper, dark=dark) for dark in (False, True)]
    assert colours == ["rgb(255, 255, 255)", "rgb(22, 24, 27)"]
