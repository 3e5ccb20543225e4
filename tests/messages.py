"""The texts of the source that a user can read."""

import ast
from collections.abc import Iterator

from tests.wheels import ROOT


def messages() -> Iterator[tuple[str, str]]:
    """Yield the file and the text of each message of the source: no docstrings and no examples."""
    for package in ("launcher", "launcher_lab"):
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text())
            left_out = {id(node) for top in ast.walk(tree) for node in outside_of_messages(top)}
            for node in ast.walk(tree):
                if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in left_out:
                    yield str(path.relative_to(ROOT)), text_of(node)


def outside_of_messages(node: ast.AST) -> list[ast.AST]:
    """Return the nodes of the docstring of a node, or of its examples, or the parts of its text."""
    if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
        return [*ast.walk(node.body[0])]
    if isinstance(node, ast.Assign) and "EXAMPLES" in ast.unparse(node.targets[0]):
        return [*ast.walk(node.value)]
    return [*ast.walk(node)][1:] if isinstance(node, ast.JoinedStr) else []


def text_of(node: ast.AST) -> str:
    """Return a text of the source, `...` for its values."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "..." for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
