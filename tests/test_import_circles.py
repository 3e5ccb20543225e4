"""No module imports itself through others, at its top or inside of functions; imports for types alone do not count."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


def modules(root: Path) -> dict[str, Path]:
    paths = [path for package in ("launcher", "launcher_lab") for path in (root / package).rglob("*.py")]
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def running(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes below one but those below `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        only_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        for one in child.orelse if only_types else [child]:  # type: ignore[attr-defined]
            yield one
            yield from running(one)


def imports(path: Path, names: dict[str, Path]) -> set[str]:
    imported: set[str] = set()
    for node in running(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            below = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {full if full in names else str(node.module) for full in below.values()}
    return imported & names.keys()


def check(root: Path) -> None:
    names = modules(root)
    graph = {name: imports(path, names) - {name} for name, path in names.items()}
    TopologicalSorter(graph).prepare()


def test_no_module_imports_itself_through_others() -> None:
    check(REPOSITORY)


@pytest.mark.parametrize(
    "line", ["import launcher.b", "def f():\n    from launcher import b", "from launcher.b import c"]
)
def test_a_circle_is_found(line: str, tmp_path: Path) -> None:
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher" / "a.py").write_text(f"{line}\n")
    (tmp_path / "launcher" / "b.py").write_text("if TYPE_CHECKING:\n    import launcher.a\n")
    check(tmp_path)
    (tmp_path / "launcher" / "b.py").write_text("if x:\n    import launcher.a\n")
    with pytest.raises(CycleError):
        check(tmp_path)
