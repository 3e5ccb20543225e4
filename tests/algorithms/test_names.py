"""Only the file of an algorithm contains its name."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from launcher.config.algorithms import ALGORITHMS

ROOT = Path(__file__).resolve().parents[2]
OWN = ("launcher/algorithms/",)
NAMES = re.compile(rf"\b({'|'.join(ALGORITHMS.declarations())})\b")
EXAMPLE = "an example in a help text or an error"
# file and name -> why the name is allowed
ALLOWED = {
    **dict.fromkeys([("launcher/cli/main.py", "mixup"), ("launcher/cli/main.py", "sam")], EXAMPLE),
    **{("launcher/cli/run.py", name): EXAMPLE for name in ("cutmix", "mixup", "ema", "blurpool")},
    ("launcher/config/overrides.py", "mixup"): EXAMPLE,
    **{("launcher/config/switches.py", name): EXAMPLE for name in ("ema", "blurpool", "sam")},
    **dict.fromkeys([("launcher_lab/cli/ablate.py", "mixup"), ("launcher_lab/study/ablation.py", "mixup")], EXAMPLE),
    ("launcher_lab/cli/curve.py", "sam"): EXAMPLE,
    **{
        ("launcher/config/formats.py", name): "the value of a key in older run folders"
        for name in ("backbone_freezing", "ema", "label_smoothing", "stored_labels")
    },
    ("launcher/weights/load.py", "ema"): "a key in the checkpoints of other programs",
    ("launcher/prediction/rates.py", "channels_last"): "the memory order, whichever algorithm sets it",
}


def words(tree: ast.Module) -> Iterator[str]:
    """Yield identifiers, imported modules and strings of a file, without comments and docstrings."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield text
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.arg(arg=text) | ast.alias(name=text):
                yield text
            case ast.keyword(arg=str(text)) | ast.ImportFrom(module=str(text)):
                yield text


def test_no_other_file_contains_the_name_of_an_algorithm() -> None:
    used = set()
    for path in (path for room in ("launcher", "launcher_lab") for path in sorted((ROOT / room).rglob("*.py"))):
        file = str(path.relative_to(ROOT))
        if not file.startswith(OWN):
            used |= {(file, name) for text in words(ast.parse(path.read_text())) for name in NAMES.findall(text)}
    assert used <= ALLOWED.keys()
