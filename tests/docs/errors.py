"""Every error message in the source, with its key."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.counts import plural

from .pages import ROOT

_RAISED = {"UserError", "Problem", "MachineError"}


@dataclass(frozen=True)
class Message:
    """One error in the source: its file, line, class, key (empty without one) and text."""

    file: str
    line: int
    raised: str
    key: str
    text: str


@dataclass(frozen=True)
class Helper:
    """A function `problem` that returns an error: the position of its parameter `message`, and the error's key."""

    position: int
    key: str


def messages() -> list[Message]:
    """Return every error whose text is in launcher/ or launcher_lab/, in the order of the files."""
    files = [path for package in ("launcher", "launcher_lab") for path in sorted((ROOT / package).rglob("*.py"))]
    trees = {path.relative_to(ROOT): ast.parse(path.read_text()) for path in files}
    helpers = {".".join(path.with_suffix("").parts): dict(_helpers(tree)) for path, tree in trees.items()}
    return [one for path, tree in trees.items() for one in _in_file(path, tree, helpers)]


def _helpers(tree: ast.Module) -> Iterator[tuple[str, Helper]]:
    """Yield the helpers that a file defines, by name."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in ("problem", "_problem"):
            names = [argument.arg for argument in node.args.args]
            defaults = dict(zip(reversed(names), reversed(node.args.defaults), strict=False))
            for call in _inside(node):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Problem":
                    yield node.name, Helper(names.index("message"), _text(call.args[1], defaults))


def _in_file(path: Path, tree: ast.Module, helpers: dict[str, dict[str, Helper]]) -> Iterator[Message]:
    constants = _names(tree.body)
    own = dict(helpers[".".join(path.with_suffix("").parts)])
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and any(alias.name == "problem" for alias in node.names):
            own |= helpers.get(str(node.module), {})
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inner = {id(node) for function in functions for node in _inside(function) if isinstance(node, ast.FunctionDef)}
    for function in functions:
        if id(function) not in inner:
            names = constants | _names(list(_inside(function)))
            for node in _inside(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {*own, *_RAISED}:
                    yield from _message(path, node, names, own.get(node.func.id))


def _message(path: Path, call: ast.Call, names: dict[str, ast.expr], helper: Helper | None) -> Iterator[Message]:
    """Yield the error of a call if its text is in the function."""
    assert isinstance(call.func, ast.Name)
    position = helper.position if helper else 0
    for text in (_text(argument, names) for argument in call.args[position : position + 1]):
        if text.strip(". "):
            key = helper.key if helper else ""
            if call.func.id == "Problem" and len(call.args) > 1:
                key = _text(call.args[1], names)
            yield Message(str(path), call.lineno, call.func.id, key, text)


def _inside(function: ast.FunctionDef) -> Iterator[ast.AST]:
    return (node for statement in function.body for node in ast.walk(statement))


def _names(nodes: list[ast.stmt] | list[ast.AST]) -> dict[str, ast.expr]:
    """Return the value that each name is set to, the last one of several."""
    return {
        node.targets[0].id: node.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def _text(node: ast.expr, names: dict[str, ast.expr]) -> str:
    """Return a text as far as it is literal in the source, with `...` for the rest."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, names) for part in parts)
        case ast.FormattedValue(value=value):
            return _text(value, names)
        case ast.Call(func=ast.Name(id="count_of"), args=[_, ast.Constant(value=str(noun))]):
            return f"... {plural(noun)}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, names) + _text(right, names)
        case ast.IfExp(body=body):
            return _text(body, names)
        case ast.Name(id=name) if name in names:
            return _text(names[name], {other: value for other, value in names.items() if other != name})
    return "..."
