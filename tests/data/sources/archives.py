"""Images whose colour is their class, files of given members or rows, and what an inspection finds in them."""

import csv
import io
import json
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from launcher.errors import UserError

from ..conftest import inspected as inspected
from .downloads import add

DIVIDED = "dataset.val_split=0.5"
TREE = [f"{split}/{name}/{number}.png" for split in ("train", "val") for name in ("ant", "bee") for number in range(3)]
PLAIN = "path,label\n" + "".join(f"../{one},{one.split('/')[1]}\n" for one in TREE)
TABLE = "path,label,split\n" + "".join(f"{one},{one.split('/')[1]},{one.split('/')[0]}\n" for one in TREE)


def png(name: str) -> bytes:
    """Return an image of a class: ant is red, anything else is blue."""
    file = io.BytesIO()
    Image.new("RGB", (20, 20), (200, 0, len(name)) if "ant" in name else (0, len(name), 200)).save(file, "PNG")
    return file.getvalue()


def content(name: str, data: Any = None) -> bytes:
    """Return what a file has: an image for none, bytes, text, or members or rows in the form that its name has."""
    if data is None or isinstance(data, (bytes, str)):
        return png(name) if data is None else data.encode() if isinstance(data, str) else data
    file, kind = io.BytesIO(), name.rpartition(".")[2].lower()
    members = data.items() if isinstance(data, dict) else data
    if kind == "tar":
        with tarfile.open(fileobj=file, mode="w") as tar:
            for one, inner in members:
                tar.addfile(inner) if isinstance(inner, tarfile.TarInfo) else add(tar, one, content(one, inner))
    elif kind == "zip":
        with zipfile.ZipFile(file, "w") as packed:
            for one, inner in members:
                packed.writestr(one, content(getattr(one, "filename", one), inner))
    elif kind == "parquet":
        parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
        rows = data if isinstance(data, pyarrow.Table) else pyarrow.Table.from_pylist(data)
        parquet.write_table(rows, file)
    elif kind in ("csv", "tsv"):
        text = io.StringIO(newline="")
        head = [[*data[0]]] if isinstance(data[0], dict) else []
        csv.writer(text).writerows([*head, *(row.values() if head else row for row in data)])
        return text.getvalue().encode()
    else:
        return "\n".join(map(json.dumps, data)).encode()
    return file.getvalue()


def write(folder: Path, files: dict[str, Any] | Iterable[str]) -> Path:
    """Write files of these contents below a folder, or images of these names, and return it."""
    for name, data in (files if isinstance(files, dict) else dict.fromkeys(files)).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content(name, data))
    return folder


def classes_of(names: list[str], rows: list[dict[str, Any]]) -> Any:
    """Return rows whose labels are numbers of named classes, as Hugging Face's `datasets` stores them."""
    pyarrow = pytest.importorskip("pyarrow")
    kinds = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    return pyarrow.Table.from_pylist(rows).replace_schema_metadata({b"huggingface": json.dumps(kinds).encode()})


def error(path: Path, *words: str) -> str:
    """Return the one-line error of an inspection."""
    with pytest.raises(UserError) as raised:
        inspected(path, *words)
    assert "\n" not in str(raised.value)
    return str(raised.value)
