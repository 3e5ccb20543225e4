"""Sources that a reader could label wrongly in silence: each is refused in one line that names what is wrong."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from .archives import DIVIDED, PLAIN, TABLE, TREE, classes_of, content, error, png, write

MULTILABEL, REGRESSION = (["task=multilabel", "loss=bce"], ["task=regression", "loss=mse"])
JUDGED = "image,label,x,y\n0.png,cat,0.5,-2\n1.png,dog|cat,1e4,3\n2.png,,-7.25,0\n3.png,dog,2,1\n"
SAMPLES = {"0.png": None, "0.json": '{"label": "ant"}'}
UNREADABLE = {name: b"no image" if name.startswith("val") else None for name in TREE}
GZIP = gzip.compress(content("x.tar", SAMPLES))
BYTES = [{"image": {"bytes": png(name), "path": None}, "label": 0.0} for name in TREE[:4]]
WRITTEN = ("nan", "inf", "-Infinity", "1_000", "1,5", "½", "١", "0x1F", "1e39", "true", "1 000")


def table(text: str) -> dict[str, Any]:
    return {**dict.fromkeys(TREE), "t.csv": text}


def states(*values: Any) -> dict[str, Any]:
    return {"t.jsonl": [{"image": f"{number}.png", "x": 1, "y": value} for number, value in enumerate(values)]}


def parquet(**changed: Any) -> dict[str, Any]:
    return {"x.parquet": [*BYTES[:3], {**BYTES[3], **changed}]}


def of_rows(label: object) -> dict[str, Any]:
    rows = [{"path": "0.png", "label": "ant"}, {"path": "1.png", "label": label}]
    return {"0.png": None, "1.png": None, "t.jsonl": rows}


# The path below a folder, its files, the words of the config, and what the error has; ROOT is the folder.
Row = tuple[str, dict[str, Any], list[str], str]

TARS: list[Row] = [
    ("x.tar", {"x.tar": {"cam0.0001.png": None, "cam0.0001.cls": "1", "cam0.0002.png": None, "cam0.0002.cls": "2"}},
     [DIVIDED], "cam0.0001.png and cam0.0002.png have the same key, cam0, since WebDataset ends it at the first dot"),
    ("y.tar", {"y.tar": {"1.png": None, "1.cls": "b", "3.png": None, "3.jpg": b"3", "3.cls": "a"}}, [DIVIDED],
     "3.png and 3.jpg have the same key, 3"),
    ("z.tar", {"z.tar": [("1.png", None), ("1.cls", "b"), ("3.png", b"3"), ("3.png", b"4"), ("3.cls", "a")]},
     [DIVIDED], "has 3.png twice in one sample; remove one"),
    ("x.tar", {"x.tar": {**SAMPLES, "1.png": None}}, [DIVIDED], "1.png has no label; add 1.cls, or a label to 1.json"),
    ("n.tar", {"n.tar": {**SAMPLES, "2.png": None, "2.json": '{"label": null}'}}, [DIVIDED],
     "n.tar: 2.png has no label; add it, or remove the sample"),
    ("y.tar", {"y.tar": {"bee/0.png": None, "bee/0.json": '{"label": "ant"}'}}, [DIVIDED],
     "has the label ant, but lies in the folder bee"),
    ("", {"d-train-0.tar": SAMPLES, "d-train-1.tar": {"ant/0.png": None}}, [DIVIDED],
     "d-train-1.tar has no labels beside its images"),
    *(("", {"train-1.tar.gz": GZIP}, words, "holds ROOT/train-1.tar.gz, which are compressed; decompress them")
      for words in ([], [DIVIDED])),
    ("", {"train.tar": {"ant/0.png": None}, "train.zip": {"ant/0.png": None}}, [DIVIDED],
     "holds archives of several formats, .tar, .zip"),
    ("", {"test.tar": {"ant/0.png": None, "bee/0.png": None}}, [DIVIDED],
     "has neither a train/ folder nor archives or a table of the train split"),
    *(("x.tar", {"x.tar": {"0.png": None, "0.json": json.dumps({"label": label})}}, [DIVIDED],
       "x.tar: 0.json has the label ") for label in ({"id": 1}, [["ant"]], "\ud800")),
]  # fmt: skip

TABLES: list[Row] = [
    *(("t.csv", table(TABLE.replace("train/ant/2.png,ant,train", row)), [], f"t.csv: {message}") for row, message in [
        ("train/ant/2.png,,train", "row 3 (train/ant/2.png) has no label; add it, or remove the row"),
        ('"a,b",ant,train,x', "row 3 has 4 cells, but the first line 3"),
        ("a,ant", "row 3 has 2 cells, but the first line 3"),
    ]),
    ("t.csv", table(TABLE), [DIVIDED], "holds validation images already (val); remove the key"),
    ("t.jsonl", {"t.jsonl": [{"path": one, "label": float("nan") if n == 4 else "ant"} for n, one in enumerate(TREE)]},
     [DIVIDED], "t.jsonl: row 5 (train/bee/1.png) has no label"),
    ("t.csv", {"t.csv": "path,label,label\na.png,ant,bee\n"}, [DIVIDED], "has the column label twice"),
    # as spreadsheets write it where a comma is part of numbers
    *((name, {name: f"path{cut}label\r\na.png{cut}ant\r\n"}, [DIVIDED], f"separates its cells by {cut!r}; write commas")
      for name, cut in (("t.csv", ";"), ("t.csv", "\t"), ("t.tsv", ","))),
    *(("t.jsonl", of_rows(label), [DIVIDED, *words], "t.jsonl: row 2 (1.png) has the label ")
      for label in ({"id": 1}, [["ant"]], "\ud800") for words in ([], ["task=multilabel"])),
    *(("t.jsonl", {"t.jsonl": line}, [DIVIDED], message) for line, message in [
        ('{"path": "0.png", "label": "ant", "label": "bee"}', "a row has a key twice: path, label, label"),
        ('[{"path": "0.png", "label": "ant"}]', "each line must be an object"),
        ('["ab", "cd"]', "each line must be an object"),
    ]),
    ("t", {**dict.fromkeys(TREE), "t/train.csv": PLAIN, "t/val.csv": PLAIN}, [DIVIDED],
     "holds validation images already (val); remove the key"),
    ("t", {**dict.fromkeys(TREE), "t/train.csv": PLAIN, "t/train.tsv": PLAIN}, [], "holds two tables of one split"),
    ("t", {**dict.fromkeys(TREE), "t/train.csv": PLAIN}, [],
     "has neither a val/ folder nor archives or a table of the val split; add one"),
    *(("x.parquet", {"x.parquet": ({"label": label}, ["cat", "dog"])}, [DIVIDED],
       f"x.parquet: row 2 has the label {label}, which is no class") for label in (-1, 2)),
    ("x.parquet", parquet(image={"bytes": None, "path": "a.png"}), [DIVIDED],
     "row 4 has no bytes in image, only the path a.png"),
    ("x.parquet", parquet(image=None), [DIVIDED], "row 4 has no bytes in image"),
    ("x.parquet", {"x.parquet": [{"image": "a.png", "label": 0.0}] * 4}, [DIVIDED],
     "has no images in this column, which is of type string"),
    ("x.parquet", parquet(label=float("nan")), [DIVIDED], "row 4 (000003) has no label"),
]  # fmt: skip

LABELS: list[Row] = [
    *((name, {name: text}, [DIVIDED, *REGRESSION, "dataset.columns.label=[x,y]"],
       f"{name}: row 2 (b.png) has no y; add it, or remove the row") for name, text in [
        ("t.csv", "image,x,y\na.png,1,2\nb.png,1,\n"),
        ("t.jsonl", [{"image": "a.png", "x": 1, "y": 2}, {"image": "b.png", "x": 1, "y": ""}]),
    ]),
    *(("t.jsonl", states(0, 0, 0, 0, blank), [DIVIDED, *MULTILABEL, "dataset.columns.label=[x,y]"],
       "t.jsonl: row 5 (4.png) has no y; add it, or remove the row") for blank in ("", " ", None)),
    *(("", {**{f"{n}.png": None for n in range(4)}, "train.csv": JUDGED, "val.csv": JUDGED}, words, message)
      for words, message in [
        ([], "train.csv: row 3 (2.png) has no label; add it, or remove the row"),
        (["dataset.columns.label=[x,y]"], "needs one class an image"),
        ([*REGRESSION, "dataset.columns.label=image"],
         "train.csv: row 1 (0.png) has the image 0.png, which is no number; write one, remove the row"),
        ([*MULTILABEL, "dataset.columns.label=[x,y]"],
         "train.csv: row 1 (0.png) has the x 0.5, not 1 or 0; write one, remove"),
        ([*REGRESSION, "dataset.columns.label=[x,z]"], "dataset.columns.label=z: ROOT/train.csv has no such column"),
    ]),
    # the oracle of `0.5`, `1e3` and others is the CSV of `test_numbers_are_read_from_lists_and_columns`
    *(("t.csv", {"t.csv": [("image", "x"), ("0.png", " +1.50 "), ("1.png", "-.5"), ("2.png", text)]},
       [DIVIDED, *REGRESSION, "dataset.columns.label=x"],
       f"t.csv: row 3 (2.png) has the x {text}, which is no number; write one, remove the")
      for text in WRITTEN),
    ("t.csv", {"t.csv": "image,x\n0.png, +1.50 \n1.png,nan\n"}, [DIVIDED, *MULTILABEL, "dataset.columns.label=[x]"],
     "t.csv: row 1 (0.png) has the x +1.50, not 1 or 0; write one, remove the"),
    *((name, {name: text}, [DIVIDED],
       f"columns.label=null: ROOT/{name} has the columns class and target, which may differ") for name, text in [
        ("t.csv", "image,target,class\n0.png,a,c\n1.png,a,b\n"),
        ("t.jsonl", [{"image": f"{n}.png", "target": "a", "class": "bc"[n % 2]} for n in range(6)]),
    ]),
]  # fmt: skip

FOLDERS: list[Row] = [
    ("", {"ant/0.png": None, "bee/0.png": None}, [DIVIDED],
     "one image of each class, so none is left to validate on"),
    ("", UNREADABLE, ["dataset.skip_bad=true"], "has no val image that can be read"),
    *((name, {name: b"x"}, [], ".parquet") for name in ("labels.json", "x.xlsx", "images.txt")),
    *((name, {name: b"x"}, [], "decompress it") for name in ("x.tar.gz", "x.tgz")),
]  # fmt: skip


@pytest.mark.parametrize(("at", "files", "words", "message"), [*TARS, *TABLES, *LABELS, *FOLDERS])
def test_a_source_is_refused_in_one_line(
    at: str, files: dict[str, Any], words: list[str], message: str, tmp_path: Path
) -> None:
    if isinstance(files.get(at), tuple):
        changed, names = files[at]
        rows = [{"image": png("ant"), "label": 0}, {"image": png("bee"), "label": 0} | changed]
        files = {at: classes_of(names, rows)}
    write(tmp_path, files)
    text = error(tmp_path / at, *words)
    assert message.replace("ROOT", str(tmp_path)) in text
    if message in (".parquet", "decompress it"):
        assert (".csv" in text, ".parquet" in text, "decompress it" in text) == (True, True, message != ".parquet")
