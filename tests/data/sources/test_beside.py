"""Files beside those of a data set, and rows of other splits: counted with a reason, or refused."""

import gzip
import json
import stat
import zipfile
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.data.sources.find import open_source
from launcher.data.sources.formats import SourceOptions
from launcher.data.sources.reading import read
from launcher.data.sources.shards import split_of
from launcher.data.workers import quiet

from .archives import draw, error, inspected, png, tar

DIVIDED = "dataset.val_split=0.5"
TREE = [f"{split}/{name}/{number}.png" for split in ("train", "val") for name in ("ant", "bee") for number in range(2)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def options(*words: str) -> SourceOptions:
    return SourceOptions(compose(["dataset=image_folder", *words]).config.dataset.columns)


def samples(*labels: str) -> list[tuple[str, bytes]]:
    return [(f"{n}.{kind}", data) for n, label in enumerate(labels) for kind, data in
            (("png", png(label + "x" * n)), ("cls", label.encode()))]  # fmt: skip


def test_a_compressed_shard_is_counted_and_refused_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    shard = tar(tmp_path / "a" / "train-0.tar", *samples("ant", "bee"))
    tar(tmp_path / "a" / "val-0.tar", *samples("ant", "bee"))
    (tmp_path / "a" / "train-1.tar.gz").write_bytes(gzip.compress(shard.read_bytes()))
    data = inspected(tmp_path / "a")
    name = tmp_path / "a" / "train-1.tar.gz"
    assert f"skipping 1 file in a compressed form, such as {name}" in data.notes
    assert (data.splits[0].seen, len(data.splits[0].files), data.splits[1].seen) == (3, 2, 2)
    (tmp_path / "a" / "val-0.tar").rename(tmp_path / "a" / "train-2.tar")
    assert f"skipping 1 file in a compressed form, such as {name}" in inspected(tmp_path / "a", DIVIDED).notes
    for other in ("train-0.tar", "train-2.tar"):
        (tmp_path / "a" / other).unlink()
    for words in ([], [DIVIDED]):
        assert f"holds {name}, which are compressed; decompress them" in error(tmp_path / "a", *words)


@pytest.mark.parametrize(
    ("name", "split"),
    [("a-train-0.tar", "train"), ("data/Test.tar", "test"), ("val/0.tar", "val"), ("x_valid.tar", "valid"),
     ("retrain.tar", ""), ("latest-0.tar", ""), ("interval.tar", ""), ("trained.tar", ""), ("tests/0.tar", "")],
)  # fmt: skip
def test_a_split_is_a_whole_word_of_a_name(name: str, split: str) -> None:
    assert split_of(name) == split


def test_tables_of_no_split_are_counted_and_two_of_one_are_refused(tmp_path: Path) -> None:
    draw(tmp_path, TREE)
    rows = "".join(f"{name},{name.split('/')[1]}\n" for name in TREE)
    (tmp_path / "t").mkdir()
    for name in ("train", "val", "test"):
        (tmp_path / "t" / f"{name}.csv").write_text(
            "path,label\n" + rows.replace("train/", "../train/").replace("val/", "../val/")
        )
    data = inspected(tmp_path / "t")
    assert f"skipping 1 table of no split that is read, such as {tmp_path}/t/test.csv" in data.notes
    assert "holds val images already; remove the key" in error(tmp_path / "t", DIVIDED)
    (tmp_path / "t" / "val.csv").rename(tmp_path / "t" / "train.tsv")
    (tmp_path / "t" / "test.csv").unlink()
    assert "holds two tables of one split" in error(tmp_path / "t")
    (tmp_path / "t" / "train.tsv").unlink()
    assert "has neither a val/ folder nor archives or a table of the val split; add one" in error(tmp_path / "t")


def test_rows_of_other_splits_are_not_divided(tmp_path: Path) -> None:
    draw(tmp_path, [name.replace("val", "test") for name in TREE])
    rows = [f"{name.replace('val', 'test')},{name.split('/')[1]},{name.split('/')[0]}" for name in TREE]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,split", *rows]))
    assert "holds val images already; remove the key" in error(tmp_path / "t.csv", DIVIDED)
    (tmp_path / "t.csv").write_text("\n".join(["path,label,split", *rows]).replace(",val", ",test"))
    data = inspected(tmp_path / "t.csv", DIVIDED)
    assert "skipping 4 rows whose split is test, such as row 5" in data.notes
    assert {file.split("/")[0] for split in data.splits for file in split.files} == {"ant", "bee"}
    assert [len(split.files) for split in data.splits] == [2, 2]
    (tmp_path / "t.csv").write_text(
        "\n".join(["path,label,split", *rows]).replace(",val", ",1").replace(",train", ",2")
    )
    assert [len(split.files) for split in inspected(tmp_path / "t.csv", DIVIDED).splits] == [4, 4]


def test_archives_and_tables_beside_class_folders_are_noted(tmp_path: Path) -> None:
    tar(draw(tmp_path, TREE) / "train-0.tar", *samples("ant"))
    (tmp_path / "val.csv").write_text("path,label\n")
    note = f"ignoring {tmp_path}/train-0.tar, {tmp_path}/val.csv, since class folders lie beside"
    assert note in inspected(tmp_path).notes


def test_links_in_a_zip_are_counted(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        for name in TREE:
            file.writestr(name, png(name))
        link = zipfile.ZipInfo("train/ant/9.png")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        file.writestr(link, "0.png")
    data = inspected(tmp_path / "x.zip")
    assert "skipping 1 link in an archive, or other special files, such as train/ant/9.png" in data.notes
    assert [len(split.files) for split in data.splits] == [4, 4]


@pytest.mark.parametrize("label", [{"id": 1}, [["ant"]], "\ud800"])
def test_a_label_that_is_no_text_or_number_is_refused(label: object, tmp_path: Path) -> None:
    draw(tmp_path, ["0.png", "1.png"])
    rows = [{"path": "0.png", "label": "ant"}, {"path": "1.png", "label": label}]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for words in ([], ["task=multilabel"]):
        assert "t.jsonl: row 2 (1.png) has the label " in error(tmp_path / "t.jsonl", DIVIDED, *words)
    path = tar(tmp_path / "x.tar", ("0.png", png("ant")), ("0.json", json.dumps({"label": label}).encode()))
    assert "x.tar: 0.json has the label " in error(path, DIVIDED)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"path": "0.png", "label": "ant", "label": "bee"}', "a row has a key twice: path, label, label"),
        ('[{"path": "0.png", "label": "ant"}]', "each line must be an object"),
        ('["ab", "cd"]', "each line must be an object"),
    ],
)
def test_a_line_that_is_no_row_is_refused(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(line)
    assert message in error(tmp_path / "t.jsonl", DIVIDED)


def test_names_that_are_not_utf_8_are_read_from_an_archive(tmp_path: Path) -> None:
    names = [name.replace("ant", "\udce9t\udce9") for name in TREE]
    path = tar(tmp_path / "x.tar", *((name, png(name.encode("latin1", "replace").decode())) for name in names))
    for _ in range(2):
        assert inspected(path).classes == ["bee", "\udce9t\udce9"]


def test_the_named_field_of_a_sample_is_its_image(tmp_path: Path) -> None:
    members = [(f"{n}.{kind}", data) for n in range(2) for kind, data in
               (("png", png("ant")), ("seg.png", png("bee")), ("cls", str(n).encode()))]  # fmt: skip
    path = tar(tmp_path / "x.tar", *members)
    for words, data in (([], png("ant")), (["dataset.columns.image=seg.png"], png("bee"))):
        source = open_source(str(path), "all", quiet, options(*words))
        assert [read(source.piece(number)) for number in range(2)] == [data, data]


@pytest.mark.parametrize("label", [-1, 2])
def test_a_number_of_no_class_is_refused(label: int, tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    rows = pyarrow.table({"image": [png("ant"), png("bee")], "label": [0, label]})
    rows = rows.replace_schema_metadata({b"huggingface": json.dumps(names).encode()})
    parquet.write_table(rows, tmp_path / "x.parquet")
    text = error(tmp_path / "x.parquet", DIVIDED)
    assert f"x.parquet: row 2 has the label {label}, which is no class" in text


def test_an_image_of_several_labels_may_have_none_in_a_column_of_named_classes(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = {"info": {"features": {"label": {"names": ["dog", "cat"], "_type": "ClassLabel"}}}}
    rows = pyarrow.table({"image": [png("ant"), png("bee"), png("cow")], "label": [1, None, 0]})
    parquet.write_table(
        rows.replace_schema_metadata({b"huggingface": json.dumps(names).encode()}), tmp_path / "x.parquet"
    )
    source = open_source(str(tmp_path / "x.parquet"), "all", quiet, SourceOptions(labelled="classes"))
    assert source.classes == ["dog", "cat", ""]
    assert [*zip(source.files, source.labels.tolist(), strict=True)] == [
        ("dog/000002", 0),
        ("cat/000000", 1),
        ("/000001", 2),
    ]
