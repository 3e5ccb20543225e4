"""Untrusted metrics.jsonl: lines that are no records are skipped, and all views of a run can be computed."""

import io
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from launcher.config.compose import compose
from launcher.records.learning_curve import draw_curve
from launcher.records.metrics import read_metrics, record_types
from launcher.records.progress import ProgressView
from launcher.records.run import read_run
from launcher.records.run_folder import RunFolder, create
from launcher.records.summary import summary_table

CONFIG = compose(["launch=cpu"]).config
KINDS = {record.kind: [field.name for field in fields(record)] for record in record_types()}

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=5),
    st.floats(),
    st.integers(),
    st.lists(st.integers(), max_size=2),
    st.sampled_from([0, -1, 10**400, 1e308, -1e99, 5e-324, "[/x]", "\ud800", {"a": 1}]),
)
VALID = st.one_of(st.integers(0, 20), st.floats(0, 20))


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a record of any kind with mostly valid values."""
    kind = draw(st.sampled_from([*KINDS, "future"]))
    names = KINDS.get(kind, ["step"])
    row = {name: draw(VALID) for name in names} | {"kind": kind, "step": draw(st.integers(0, 9))}
    row |= {"device": "cpu", "precision": "fp32", "policy": "skip", "indices": [[1]], "finished": True}
    row |= {
        "primary": "top1",
        "better": "higher",
        "metrics": draw(st.dictionaries(st.sampled_from(["top1", "top5", "x"]), ODD)),
    }
    row = {name: value for name, value in row.items() if name in names or name == "kind"}
    return row | draw(st.dictionaries(st.sampled_from(names), ODD, max_size=2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return create(tmp_path_factory.mktemp("runs"), "[/odd]", unique=False)


def shown(folder: RunFolder, *, terminal: bool) -> str:
    """Return the progress of a run, as if its records appeared now, and its summary."""
    output = io.StringIO()
    console = Console(file=output, width=200, force_terminal=terminal)
    content = folder.metrics.read_bytes()
    folder.metrics.write_bytes(b"")
    view = ProgressView(folder.metrics, CONFIG.task, total_steps=10, epochs=3, console=console)
    folder.metrics.write_bytes(content)
    view.close()
    console.print(summary_table(folder, CONFIG))
    return output.getvalue()


@settings(max_examples=100)
@example(lines=[b'{"kind":"train","step":0}', b'{"kind":"end","step":0}', b'{"kind":"eval","step":1}'])
@example(lines=[b'{"kind":"test","step":1}', b'{"kind":"test","step":1,"seconds":"2","metrics":[]}'])
@example(lines=[b"[" * 100_000, b'{"kind":"resume","step":-1}', b"\xff\xfe", b"NaN", b"9" * 5000, b'{"a":' * 5000])
@given(
    lines=st.lists(
        rows().map(lambda row: json.dumps(row).encode()) | st.binary(max_size=30) | st.just(b'{"kind": "train", "st')
    )
)
def test_any_lines_can_be_shown(folder: RunFolder, lines: list[bytes]) -> None:
    folder.metrics.write_bytes(b"\n".join(lines))
    for terminal in (True, False):
        assert str(folder.path) in shown(folder, terminal=terminal)
    read_run(folder.path)


@settings(max_examples=5)
@given(lines=st.lists(rows(), min_size=5))
def test_any_records_can_be_drawn(folder: RunFolder, lines: list[dict[str, Any]]) -> None:
    folder.metrics.write_text("\n".join(map(json.dumps, lines)))
    assert draw_curve(folder, CONFIG.task, "a title").is_file()


@pytest.mark.parametrize("value", ["1", None, True, float("nan"), float("inf"), 10**400, 1e308, [1], {}])
def test_an_invalid_value_invalidates_only_its_line(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "metrics.jsonl"
    row: dict[str, Any] = {name: [1] if name.startswith("rank_") else 1 for name in KINDS["train"]} | {"kind": "train"}
    path.write_text("\n".join(json.dumps(r) for r in (row | {"step": 3}, row | {"lr": value}, row)))
    assert [r["step"] for r in read_metrics(path)] == [3, 1]
