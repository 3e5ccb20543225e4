"""index.html of a run folder: its results, curve, errors, commands, config and environment, without scripts."""

import base64
import csv
import json
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

from launcher.config.layers import leaves
from launcher.config.options import Unread
from launcher.config.overrides import word_of
from launcher.config.resolved import as_mapping, read
from launcher.config.schema import RunConfig
from launcher.counts import count_of
from launcher.errors import one_line
from launcher.files import page
from launcher.records.origins import read_origins
from launcher.records.run import RunSummary, read_run
from launcher.records.run_folder import RunFolder
from launcher.records.summary import results

_PACKAGES = ("torch", "torchvision", "timm", "numpy")
_MOST_CLASSES, _MOST_WORST = 20, 12


def write_page(folder: RunFolder) -> Path:
    """Write the page of a run, and return its path.

    Raises UserError if the config cannot be read, or another file has the page's name.
    """
    page.check_output(folder.page)
    config, run = read(folder.config, imports=False), read_run(folder.path)
    about = [run.recipe, run.model, run.dataset]
    body = "".join(
        [
            f'<p class="hint">{page.text(" · ".join(about))}</p>\n',
            page.section("Results", run.state, _table([*_results(folder, config, run), *_cost(run)])),
            _curve(folder.curve),
            _errors(folder.path),
            page.section("Next", "commands for this run", _commands(folder.path, config)),
            _config(run, config, folder),
            page.section("Environment", "of the process that started the run", _table(_environment(run))),
        ]
    )
    page.write(folder.page, folder.path.name, body)
    return folder.page


def write_page_or_warn(folder: RunFolder, show: Callable[[str], None]) -> None:
    """Write the page of a run that has ended; a failure is a warning."""
    try:
        write_page(folder)
    # note: the run has ended well, whatever its page lacks
    except Exception as error:
        show(one_line(f"warning: cannot write the page of the run: {str(error) or type(error).__name__}"))


def _table(rows: Iterable[tuple[str, object]]) -> str:
    return page.table(("", ""), ([page.text(name), page.text(value)] for name, value in rows))


def _results(folder: RunFolder, config: RunConfig, run: RunSummary) -> list[tuple[str, str]]:
    """Return the results; of a task of the user's, whose code is not imported, the primary metric."""
    if not isinstance(config.task, Unread):
        return results(folder, config)
    return [(run.metric.title, run.metric.text(one.top1)) for one in run.evaluations[-1:]]


def _cost(run: RunSummary) -> list[tuple[str, object]]:
    if (money := run.money("training")) is None:
        return [("cost of training", "unknown: this machine has no price; set hardware.price_per_hour")]
    return [("cost of training", f"{money:,.2f} {run.currency} on {run.hardware}")]


def _curve(path: Path) -> str:
    image = _image(path, "learning curve")
    return page.section("Learning curve", "by epochs", image) if image else ""


def _image(path: Path, about: str) -> str:
    """Return an element with a PNG file of the run folder; empty without one."""
    if not path.is_file():
        return ""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img class="wide" src="data:image/png;base64,{data}" alt="{page.text(about)}">'


def _worst(path: Path) -> str:
    """Return the first images of the page of errors that `train eval --by-class` writes; empty without them."""
    try:
        listed = page.read_figures(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else []
    except OSError:
        return ""
    return page.grid(
        (page.image_element(uri, about), "<br>".join(map(page.text, lines)))
        for uri, about, lines in listed[:_MOST_WORST]
    )


def _errors(folder: Path) -> str:
    """Return what `train eval --by-class` has written into the run folder."""
    table, confusion = folder / "by_class.csv", _image(folder / "confusion.png", "confusion matrix")
    if not table.is_file():
        return confusion and page.section("Errors", "classes that are confused", confusion)
    heading, *rows = csv.reader(table.read_text(encoding="utf-8", errors="replace").splitlines()[: 1 + _MOST_CLASSES])
    cells = page.table(heading, (map(page.text, row) for row in rows), range(1, 4))
    worst = _worst(folder / "gallery.html")
    images = worst and f"<p>the first images of gallery.html</p>{worst}"
    return page.section("Errors", f"the worst {count_of(len(rows), 'class')}", cells + confusion + images)


def _commands(folder: Path, config: RunConfig) -> str:
    run, of_images = shlex.quote(str(folder)), "image" in getattr(config.task, "needs", ["image"])
    lines = [
        f"train resume {run} " + word_of("epochs", str(2 * config.epochs)),
        f"train predict {run} {'IMAGES' if of_images else 'TEXT'}",
        f"train eval {run}{' --by-class' if of_images else ''}",
        f"train export {run}",
        f"train report {run}",
    ]
    text = "\n".join(map(page.text, lines))
    return f"<pre>{text}</pre>"


def _config(run: RunSummary, config: RunConfig, folder: RunFolder) -> str:
    origins = read_origins(folder)
    rows = [
        [page.text(text) for text in (key, json.dumps(value), origins.get(key, ""))]
        for key, value in leaves(as_mapping(config))
    ]
    typed = f"<pre>{page.text(shlex.join(run.command))}</pre>" if run.command else "<p>unknown</p>"
    table = page.table(("key", "value", "origin"), rows)
    every = f"<details><summary>{count_of(len(rows), 'value')} of the run</summary>{table}</details>"
    return page.section("Config", "what was typed, and what it became", typed + every)


def _environment(run: RunSummary) -> list[tuple[str, object]]:
    facts, packages = run.environment, run.environment.get("packages")
    if packages is None:
        return [("environment", "unknown")]
    machine = [(key, facts.get(key)) for key in ("host", "system", "python", "cpu", "cores", "version", "commit")]
    gpus = ", ".join(map(str, facts.get("gpus", ()))) or "none"
    return [*machine, ("GPUs", gpus), *((name, packages[name]) for name in _PACKAGES if name in packages)]
