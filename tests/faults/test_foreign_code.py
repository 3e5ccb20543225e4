"""Code beside that of a known SHA-256 never runs, and commands that only show runs import none."""

import importlib.util
import json
import py_compile
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from launcher.config import code, resolved
from launcher.config.compose import compose
from tests.commands import output_of
from tests.made_runs import MakeRun
from tests.own_code import METRICS, NETWORKS, TYPED

PARTS = "try:\n    from parts import inner\nexcept ImportError:\n    pass\n"
OWN = ["model._target_=nets.TinyNet", "algorithms=[dark]", "optimizer._target_=parts.Sign", "optimizer.lr=0.1",
       "metrics.top2._target_=nets.top2"]  # fmt: skip
SIGN = "import torch\n\n\nclass Sign(torch.optim.SGD):\n    pass\n"


def start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove what this process has loaded."""
    monkeypatch.setenv("TRAIN_CODE", "[]")
    for name in ("nets", "typed", "parts", "parts.inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder with code that was named on this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "parts").mkdir()
    for name, text in {"nets.py": NETWORKS + METRICS, "typed.py": TYPED, "parts/__init__.py": PARTS + SIGN}.items():
        (tmp_path / name).write_text(text)
    (conf := tmp_path / "conf" / "algorithms" / "dark.yaml").parent.mkdir(parents=True)
    conf.write_text("probability: 0.5\n")
    start_again(monkeypatch)
    yield tmp_path
    start_again(monkeypatch)


def compiled(source: Path, marked: Path) -> Path:
    """Write what Python runs instead of a source: compiled code with the source's time and size."""
    evil = source.with_name("evil.py")
    evil.write_text(f"open({str(marked)!r}, 'w')\n")
    cached = Path(importlib.util.cache_from_source(str(source)))
    cached.parent.mkdir(exist_ok=True)
    py_compile.compile(str(evil), str(cached), doraise=True)
    content, about = bytearray(cached.read_bytes()), source.stat()
    content[8:16] = int(about.st_mtime).to_bytes(4, "little") + about.st_size.to_bytes(4, "little")
    cached.write_bytes(content)
    evil.unlink()
    return cached


def linked_folder(folder: Path, marked: Path) -> None:
    (folder.parent / "elsewhere").mkdir()
    (folder.parent / "elsewhere" / "__init__.py").write_text(f"open({str(marked)!r}, 'w')\n")
    (folder / "inner").symlink_to(folder.parent / "elsewhere")


def without_source(folder: Path, marked: Path) -> None:
    (source := folder / "inner.py").write_text("")
    shutil.move(compiled(source, marked), folder / "inner.pyc")
    source.unlink()


BESIDE: dict[str, Callable[[Path, Path], object]] = {
    "__pycache__": lambda folder, marked: compiled(folder / "__init__.py", marked),
    ".pyc": without_source,
    "link": linked_folder,
}


@pytest.mark.parametrize("kind", BESIDE)
def test_only_the_bytes_of_the_sha256_run(here: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code.use(["parts"])
    start_again(monkeypatch)
    BESIDE[kind](here / "parts", marked := here / "ran")
    assert code.use(["parts"])[0].sha256
    assert not marked.exists()
    assert "Sign" in vars(sys.modules["parts"])
    start_again(monkeypatch)
    shutil.rmtree(here / "parts" / "__pycache__", ignore_errors=True)
    compiled(here / "nets.py", marked)
    code.use(["nets.py"])
    assert not marked.exists()


def test_what_is_changed_between_the_check_and_the_import_does_not_run(here: Path) -> None:
    (own,) = code.use(["nets.py"])
    del sys.modules["nets"]
    (here / "nets.py").write_text("raise SystemExit\n")
    with pytest.raises(code.UserError, match="has changed since this command started"):
        code.modules()
    assert own.name == "nets"


@pytest.fixture
def foreign(here: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a finished run whose code would leave a file `ran`, also by what is compiled beside a known source."""
    words = ["code=[nets.py,typed.py,parts]", "epochs=2", *OWN]
    run, config = make_run("theirs"), compose(words).config
    resolved.write(config, run / "config.yaml")
    values = yaml.safe_load((run / "config.yaml").read_text())
    (own := run / "code").mkdir()
    for path in map(Path, values["code"]):
        (shutil.copytree if path.is_dir() else shutil.copyfile)(path, own / path.name)
    values["code"] = [str(own / Path(path).name) for path in values["code"]]
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    for source in (own / "nets.py", own / "typed.py", own / "parts" / "__init__.py"):
        compiled(source, here / "ran")
    (here / "recipes").mkdir()
    (here / "recipes" / "other.yaml").write_text(f"defaults: [train, _self_]\ncode: {own}/nets.py\nepochs: 3\n")
    start_again(monkeypatch)
    return run


def test_commands_that_show_runs_import_none_of_their_code(foreign: Path, here: Path) -> None:
    (foreign / "code" / "nets.py").write_text(f"open({str(here / 'ran')!r}, 'w')\n")
    (listed,) = json.loads(output_of("ls", "runs", str(foreign), "--json"))["runs"]
    assert (listed["state"], listed["metric"], listed["best"], listed["problem"]) == ("finished", "top-1", 0.6, None)
    compared = json.loads(output_of("compare", str(foreign), "--json"))
    assert (compared["not_counted"], len(compared["points"])) == ([], 1)
    output_of("report", str(foreign))
    assert {"nets.TinyNet", "60.00%"} <= set(re.findall(r"nets.TinyNet|60.00%", (foreign / "index.html").read_text()))
    output_of("report", str(foreign), "-o", "page.html")
    differing = json.loads(output_of("diff", str(foreign), "other", "--json"))
    assert {"key": "epochs", "first": 2, "second": 3} in differing
    assert "nets" not in sys.modules
    assert not (here / "ran").exists()


def test_a_recipe_that_is_typed_names_code(here: Path) -> None:
    (here / "recipes").mkdir()
    (here / "recipes" / "other.yaml").write_text("defaults: [train, _self_]\ncode: nets.py\n")
    output_of("show", "recipe=other")
    assert "nets" in sys.modules


def test_a_task_and_an_architecture_of_the_user_are_shown_too(foreign: Path) -> None:
    values = yaml.safe_load((foreign / "config.yaml").read_text())
    values["task"], values["model"] = {"name": "amounts"}, {**compose(["model=timm"]).config.model.__dict__}
    values["model"]["architecture"] = "my_tiny"
    (foreign / "config.yaml").write_text(yaml.safe_dump(values))
    (listed,) = json.loads(output_of("ls", "runs", str(foreign), "--json"))["runs"]
    shown = [listed[name] for name in ("state", "metric", "best_text", "problem")]
    assert shown == ["finished", "top-1", "60.00%", None]
    assert json.loads(output_of("compare", str(foreign), "--json"))["not_counted"] == []
    output_of("report", str(foreign))
    assert "my_tiny" in (foreign / "index.html").read_text()
    assert "nets" not in sys.modules
