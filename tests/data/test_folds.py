"""Folds of cross-validation: properties of scikit-learn's StratifiedKFold and StratifiedGroupKFold."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from launcher.config.compose import compose
from launcher.data.identity import identity
from launcher.data.index import Images
from launcher.data.sources.find import splits
from launcher.errors import UserError
from tests.commands import refused

from .conftest import inspected, words_for
from .sources.archives import write

COUNTS = {"cat": 43, "dog": 17, "emu": 8}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return write(tmp_path / "plain", [f"{name}/{n}.png" for name, count in COUNTS.items() for n in range(count)])


@pytest.fixture
def patients(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """Images of 30 patients, several classes each, of unequal numbers; the patient of each file."""
    random, names = np.random.default_rng(0), []
    for number in range(300):
        patient = int(random.integers(0, 30) ** 1.5) % 30
        names.append(f"{random.choice(['cat', 'dog'], p=[0.7, 0.3])}/p{patient}/{number}.png")
    return write(tmp_path / "patients", names), {name: name.split("/")[1] for name in names}


def split(folder: Path, fold: int, *words: str, folds: int = 5, seed: int = 0) -> tuple[Images, Images]:
    config = compose(words_for(folder, f"dataset.folds={folds}", f"dataset.fold={fold}", *words)).config
    return splits(config.dataset, seed, "class")


def by_class(split: Images) -> Counter[str]:
    return Counter(split.classes[label] for label in split.labels)


def test_folds_divide_the_images_with_equal_parts_of_each_class(plain: Path) -> None:
    both = [split(plain, fold) for fold in range(1, 6)]
    every = sorted(str(path.relative_to(plain)) for path in plain.rglob("*.png"))
    assert sorted(file for _, val in both for file in val.names) == every
    for train, val in both:
        assert sorted([*train.names, *val.names]) == every
        for name, count in COUNTS.items():
            assert by_class(val)[name] in (count // 5, count // 5 + 1)
    sizes = [len(val) for _, val in both]
    assert max(sizes) - min(sizes) <= len(COUNTS)


def test_folds_depend_only_on_seed_and_names(plain: Path, tmp_path: Path) -> None:
    drawn = [{*split(plain, fold)[1].names} for fold in (1, 2)]
    copy = write(tmp_path / "copy", sorted((str(p.relative_to(plain)) for p in plain.rglob("*.png")), reverse=True))
    assert {*split(copy, 1)[1].names} == drawn[0]
    assert {*split(plain, 1, seed=1)[1].names} != drawn[0]
    write(plain, ["cat/900.png"])
    assert len({*split(plain, 1)[1].names} ^ drawn[0]) <= 2
    one, two = (compose(words_for(plain, "dataset.folds=5", f"dataset.fold={fold}")).config for fold in (1, 2))
    assert identity(one) == identity(two) != identity(compose(words_for(plain, "dataset.val_split=0.2")).config)


def test_a_group_is_on_one_side_and_the_classes_have_alike_shares(patients: tuple[Path, dict[str, str]]) -> None:
    folder, patient_of = patients
    both = [split(folder, fold, "dataset.groups=1") for fold in range(1, 6)]
    assert sorted(file for _, val in both for file in val.names) == sorted(patient_of)
    for train, val in both:
        assert not {patient_of[file] for file in train.names} & {patient_of[file] for file in val.names}
        assert train.groups is val.groups is None
    total = Counter(name.split("/")[0] for name in patient_of)
    largest = max(Counter(patient_of.values()).values())
    shares = np.array([[by_class(val)[name] / total[name] for name in total] for _, val in both])
    assert abs(shares - 0.2).max() < largest / min(total.values())
    assert abs(shares - 0.2).mean() < 0.05
    assert {*split(folder, 1, "dataset.groups=1", seed=3)[1].names} != {*both[0][1].names}


def test_groups_are_a_column_of_a_table(patients: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    folder, patient_of = patients
    rows = [f"{folder}/{name},{name.split('/')[0]},{patient}" for name, patient in patient_of.items()]
    table = tmp_path / "all.csv"
    table.write_text("\n".join(["path,label,patient", *rows]) + "\n")
    for fold in range(1, 6):
        train, val = split(table, fold, "dataset.groups=patient")
        expected = split(folder, fold, "dataset.groups=1")[1]
        assert sorted(Path(file).stem for file in val.names) == sorted(Path(file).stem for file in expected.names)
        assert len(train) + len(val) == 300
    with pytest.raises(UserError, match=r"dataset.groups=doctor: .*all.csv has no such column; set one of path, label"):
        split(table, 1, "dataset.groups=doctor")
    table.write_text(table.read_text() + f"{folder}/cat/no.png,cat,\n")
    with pytest.raises(UserError, match=r"row 301 .* has no patient; add it"):
        split(table, 1, "dataset.groups=patient")


def test_folds_are_noted_and_counted(plain: Path) -> None:
    inspection = inspected(plain, "dataset.folds=5", "dataset.fold=2")
    counts = inspection.config.dataset
    assert inspection.notes[0] == (
        f"dataset.folds=5: fold 2 holds out {counts.val_samples} of 68 images, drawn by seed=42"
    )


def test_errors_state_the_key(plain: Path, tmp_path: Path) -> None:
    def error(*words: str, path: Path = plain) -> str:
        return refused("plan", *words_for(path, *words))

    assert "dataset.fold=null" in error("dataset.folds=5")
    assert "must be a fold from 1 to 5; set dataset.fold=1" in error("dataset.folds=5", "dataset.fold=6")
    assert "dataset.fold=1 (command line): is for cross-validation; set dataset.folds=5 too" in error("dataset.fold=1")
    both = error("dataset.folds=5", "dataset.fold=1", "dataset.val_split=0.1")
    assert "dataset.val_split=0.1" in both
    assert "remove one of them" in both
    assert "only tables" in error("dataset.folds=5", "dataset.fold=1", "dataset.groups=patient")
    assert "without such a folder" in error("dataset.folds=5", "dataset.fold=1", "dataset.groups=1")
    assert "too few groups" in error(
        "dataset.folds=5",
        "dataset.fold=5",
        "dataset.groups=1",
        path=write(tmp_path / "few", ["a/p/1.png", "b/p/2.png"]),
    )
    held_out = write(tmp_path / "divided", ["train/a/1.png", "train/b/1.png", "val/a/2.png", "val/b/3.png"])
    already = "dataset.folds=5: {} holds validation images already (val); remove the key, or move them"
    assert already.format(held_out) in error("dataset.folds=5", "dataset.fold=1", path=held_out)
    assert "dataset.folds=3" in refused("plan", "dataset=shapes", "dataset.folds=3", "dataset.fold=1")
    assert "did you mean dataset.folds" in refused("plan", *words_for(plain, "kfold=5"))
