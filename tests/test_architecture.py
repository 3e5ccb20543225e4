"""The imports between packages, and what the command line must not import."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from launcher.config.compose import compose
from launcher.config.resolved import write
from launcher.records.run_folder import RunFolder
from launcher.weights.card import CARD, WEIGHTS

REPOSITORY = Path(__file__).resolve().parents[1]
ROOT, LAB = REPOSITORY / "launcher", REPOSITORY / "launcher_lab"

PAGE = (REPOSITORY / "docs" / "architecture.md").read_text()
# package -> the packages that it may import, from the page; those of the lab start with launcher_lab/
ALLOWED = {
    package: set(filter(None, allowed.replace(" ", "").split(",")))
    for package, allowed in re.findall(r"^\| `([\w/]+)` \|.*\|([\w/, ]*)\|$", PAGE, re.MULTILINE)
}
TORCH_FREE = (
    *("cli", "config", "loggers", "results", "plan", "doctor", "submit", "launch/start.py", "measure/launch.py"),
    *("measure/estimate.py", "measure/diagnosis.py", "rank/signs.py", "weights/card.py", "publish/run_page.py"),
    *("files", "compute", "console.py", "errors.py", "plugins.py", "later.py", "paths.py"),
    *("launcher_lab/cli", "launcher_lab/study"),
    *(f"prediction/{name}.py" for name in ("prediction", "profiles", "offers", "machines", "faster", "rates", "start")),
)


def files(part: str) -> list[Path]:
    path = REPOSITORY / part if part.startswith("launcher_lab/") else ROOT / part
    return [path] if path.suffix else sorted(path.rglob("*.py"))


def imported(path: Path, *, at_top_only: bool) -> set[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if at_top_only else list(ast.walk(tree))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}


def running(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes below one but those below `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        only_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        for one in child.orelse if only_types else [child]:  # type: ignore[attr-defined]
            yield one
            yield from running(one)


def modules_imported(path: Path, modules: dict[str, Path]) -> set[str]:
    """Return the modules that a file imports at its top or inside of functions, but for types alone."""
    names: set[str] = set()
    for node in running(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {full if full in modules else str(node.module) for full in below}
    return names & modules.keys()


def started(path: Path) -> set[str]:
    """Return the modules that a file has in strings, for another process to run."""
    constants = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
    return {value for value in constants if isinstance(value, str) and re.match(r"(launcher|launcher_lab)\.\w+", value)}


def packages(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if (path / "__init__.py").exists()}


def package_of(name: str) -> str:
    """Return the package of a module: config of launcher.config.keys, launcher_lab/cli of launcher_lab.cli.curve."""
    first, second = name.split(".")[:2]
    return second if first == "launcher" else f"launcher_lab/{second}"


def test_the_page_lists_every_package_and_top_level_file() -> None:
    assert ALLOWED.keys() == packages(ROOT) | {f"launcher_lab/{name}" for name in packages(LAB)}
    assert re.findall(r"^  (\w+\.py)", PAGE, re.MULTILINE) == sorted(
        path.name for path in ROOT.glob("*.py") if path.name != "__init__.py"
    )
    folders = re.findall(r"^(\w+)/", PAGE, re.MULTILINE)
    tracked = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout
    if tracked:
        at_top = {line.split("/")[0] for line in tracked.splitlines() if "/" in line and not line.startswith(".")}
        assert set(folders) == at_top
    else:
        assert all((REPOSITORY / folder).is_dir() for folder in folders)


def test_packages_are_listed_below_those_that_they_import() -> None:
    before: set[str] = set()
    for package, allowed in ALLOWED.items():
        assert allowed <= before, package
        before.add(package)


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_follow_the_table_and_the_table_of_lab_lists_no_unused_one(package: str) -> None:
    used: set[str] = set()
    for path in files(package):
        names = imported(path, at_top_only=False) | started(path)
        packages_used = {
            package_of(name) for name in names if name.startswith(("launcher.", "launcher_lab."))
        } & ALLOWED.keys()
        assert packages_used <= ALLOWED[package] | {package}, path
        used |= packages_used
    assert not package.startswith("launcher_lab/") or used - {package} == ALLOWED[package]


def test_no_module_imports_itself_through_others() -> None:
    paths = [*ROOT.rglob("*.py"), *LAB.rglob("*.py")]
    names = [".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in paths]
    modules = {name.removesuffix(".__init__"): path for name, path in zip(names, paths, strict=True)}
    TopologicalSorter({name: modules_imported(path, modules) - {name} for name, path in modules.items()}).prepare()


def test_the_launcher_does_not_mention_the_lab() -> None:
    for path in ROOT.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            assert not re.search(r"\blauncher_lab\b|\blab\b|\blaboratory\b", path.read_text()), path


def test_libraries_of_loggers_are_imported_only_there() -> None:
    for path in sorted({*ROOT.rglob("*.py"), *LAB.rglob("*.py")} - {*files("loggers")}):
        names = {name.split(".")[0] for name in imported(path, at_top_only=False)}
        assert not names & {"mlflow", "wandb"}, path


@pytest.mark.parametrize("part", TORCH_FREE)
def test_torch_free_modules_do_not_import_torch_at_the_top(part: str) -> None:
    for path in files(part):
        assert not {n for n in imported(path, at_top_only=True) if n.split(".")[0] in ("torch", "torchvision")}, path


QUICK = [
    *(["--help"], ["ls"], ["show", "recipe=hot"], ["plan", "recipe=hot"], ["plan", "-h"], ["curve", "-h"]),
    *([verb, "-h"] for verb in ("ablate", "compare", "report")),
    *(["completion", "bash"], ["help", "crop"]),
]
INVALID = [
    (["dataset=imagenet", "dataset.path=/nowhere"], "dataset.path=/nowhere: not a folder"),
    (["launch=cpu", "batch_size=5000"], "batch_size=5000"),
    (["estimate", "dataset=imagenet", "dataset.path=/nowhere"], "dataset.path=/nowhere: not a folder"),
    (["ablate", "dataset=imagenet", "dataset.path=/nowhere"], "dataset.path=/nowhere: not a folder"),
    (["resume", "RUN", "nope=1"], "nope=1"),
    (["resume", "RUN", "launch.nnodes=0"], "launch.nnodes=0"),
    (["eval", "RUN"], "has no checkpoint yet"),
    (["export", "RUN"], "has no checkpoint yet"),
    (["predict", "EXPORT", "IMAGE"], "batch_size=null: is missing, eval_batch_size=null: is missing and "),
]
# Run each command in a fork of a process that composed a config; print its output and its slow imports.
FORKS = """
import io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from launcher_lab.cli import compare, curve, report
from launcher.cli import plan
from launcher.cli.main import main
from launcher.config.compose import compose
compose(["launch=cpu"])
for words in json.loads(sys.argv[1]):
    process = os.fork()
    if process:
        os.waitpid(process, 0)
        continue
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        try:
            code = main(words)
        except SystemExit as stop:
            code = stop.code
    slow = sorted({"torch", "matplotlib", "scipy"} & set(sys.modules))
    print(json.dumps([code or 0, output.getvalue(), errors.getvalue(), slow]), flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    run = RunFolder(tmp_path_factory.mktemp("run"))
    write(compose(["launch=cpu"]).config, run.config)
    export = tmp_path_factory.mktemp("export")
    (export / CARD).write_text('{"config": {"epochs": "many"}, "classes": []}')
    (export / WEIGHTS).touch()
    (image := export / "a.png").touch()
    real = {"RUN": str(run.path), "EXPORT": str(export), "IMAGE": str(image)}
    lines = [*QUICK, *(words for words, _ in INVALID)]
    commands = [[real.get(word, word) for word in words] for words in lines]
    command = [sys.executable, "-c", FORKS, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {str(words): json.loads(line) for words, line in zip(lines, done.stdout.splitlines(), strict=True)}


@pytest.mark.parametrize("words", QUICK)
def test_quick_verbs_import_no_torch(words: list[str], outputs: dict[str, list[Any]]) -> None:
    code, output, errors, slow = outputs[str(words)]
    assert (code, slow) == (0, []), errors
    assert output


@pytest.mark.parametrize(("words", "message"), INVALID)
def test_errors_are_reported_before_torch_is_imported(
    words: list[str], message: str, outputs: dict[str, list[Any]]
) -> None:
    code, _, errors, slow = outputs[str(words)]
    assert (code, message in errors, slow) == (2, True, []), errors


def test_the_values_of_all_options_are_read_without_torch() -> None:
    code = "import sys, launcher.config.keys as keys; keys.all_keys(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_module_imported_later_is_the_module_itself() -> None:
    code = """
from launcher.later import F, nn, torch
assert F.relu(torch.ones(1)) == 1
import torch as now, torch.nn.functional
assert (now, now.nn, now.nn.functional) == (torch, nn, F)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_rank_imports_no_library_that_few_runs_need() -> None:
    """They take seconds, and W&B's client, which timm imports, creates folders that a rank would leave behind."""
    code = "import sys, launcher.training.worker; print(*{'timm', 'wandb', 'scipy', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_no_test_imports_another() -> None:
    for path in (REPOSITORY / "tests").rglob("*.py"):
        assert not {name for name in imported(path, at_top_only=False) if name.split(".")[-1].startswith("test_")}, path


def test_files_and_functions_of_the_product_are_short() -> None:
    for path in [*files("."), *LAB.rglob("*.py")]:
        assert path.read_text().count("\n") <= 300, path
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < 50, f"{path}: {node.name}"
