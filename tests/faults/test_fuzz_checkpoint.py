"""Untrusted checkpoints with valid checksums: none runs code or fills the memory; each is read or refused."""

import hashlib
import io
import os
import pickle
import resource
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from launcher.errors import UserError
from launcher.records.run_folder import checkpoint_name
from launcher.training import checkpoint
from launcher.training.checkpoint import load, newest_valid, prune

STATE = {"step": 1, "w": torch.arange(50.0), "nested": [1, 2.5, None, True, ("a", {"b": torch.zeros(2, 3)})]}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints") / checkpoint_name(1)


@pytest.fixture(scope="module")
def valid(path: Path) -> bytes:
    """Return the bytes of a valid file without its checksum."""
    checkpoint.save(STATE, path)
    return path.read_bytes()[:-32]


def sign(path: Path, content: bytes) -> Path:
    """Write the content with its checksum."""
    path.write_bytes(content + hashlib.sha256(content).digest())
    return path


def read_or_refused(path: Path) -> None:
    try:
        state = load(path)
    except UserError as error:
        message = str(error)
        assert message.startswith(f"checkpoint={path}")
        assert message.isprintable()
    else:
        assert isinstance(state, dict)


@contextmanager
def memory_limit(more: int) -> Iterator[None]:
    """Limit the memory of this process to so many more bytes."""
    former = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, former)


def repacked(content: bytes, change: Callable[[str, bytes], bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return the archive with changed records and valid checksums."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return out.getvalue()


@st.composite
def mutations(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Draw a function that changes, removes and inserts bytes at a few places, or cuts off the end."""
    kinds = st.sampled_from(["change", "change", "change", "remove", "insert", "cut"])
    steps = st.tuples(kinds, st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=6))
    plan = draw(st.lists(steps, min_size=1, max_size=5))

    def mutate(content: bytes) -> bytes:
        changed = bytearray(content)
        for kind, place, some in plan:
            at = int(place * len(changed))
            if kind == "cut":
                del changed[at:]
            else:
                changed[at : at + (0 if kind == "insert" else len(some))] = b"" if kind == "remove" else some
        return bytes(changed)

    return mutate


@settings(max_examples=150)
@example(mutate=lambda content: b"")
@example(mutate=lambda content: content[:-1])
@given(mutate=mutations())
def test_a_mutated_file_is_read_or_refused(path: Path, valid: bytes, mutate: Callable[[bytes], bytes]) -> None:
    read_or_refused(sign(path, mutate(valid)))


@settings(max_examples=150)
@given(mutate=mutations())
def test_a_mutated_pickle_is_read_or_refused(path: Path, valid: bytes, mutate: Callable[[bytes], bytes]) -> None:
    sign(path, repacked(valid, lambda name, data: mutate(data) if name.endswith("data.pkl") else data))
    read_or_refused(path)


@settings(max_examples=100)
@given(content=st.binary(max_size=200))
def test_any_pickle_is_read_or_refused(path: Path, valid: bytes, content: bytes) -> None:
    sign(path, repacked(valid, lambda name, data: b"\x80\x02" + content + b"." if name.endswith("data.pkl") else data))
    read_or_refused(path)


@settings(max_examples=50)
@given(
    saved=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just(torch.zeros(2)),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    )
)
def test_any_other_content_is_read_or_refused(path: Path, saved: Any) -> None:
    for content in (saved, {"format": 1}, {"format": 1, "state": saved}):
        buffer = io.BytesIO()
        torch.save(content, buffer)
        read_or_refused(sign(path, buffer.getvalue()))


class Call:
    """An object whose pickle calls a function when it is loaded."""

    def __init__(self, function: Any, *arguments: Any):
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def calls(trace: str) -> list[Call]:
    code = f"import os; os.mkdir({trace!r})"
    return [
        Call(os.mkdir, trace),
        Call(os.system, f"mkdir '{trace}'"),
        Call(exec, code),
        Call(eval, f"__import__('os').mkdir({trace!r})"),
        Call(getattr, Call(__import__, "os"), "mkdir"),
        Call(pickle.loads, pickle.dumps(Call(os.mkdir, trace))),
        Call(torch.load, trace),
        Call(torch.hub.load, "a/b", "c"),
        Call(torch.compile, Call(exec, code)),
        Call(open, trace, "w"),
    ]


@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("written", ["archive", "legacy", "pickle", "record"])
def test_code_is_never_run(path: Path, valid: bytes, tmp_path: Path, number: int, written: str) -> None:
    trace = tmp_path / "trace"
    content = {"format": 1, "state": {"step": 1, "code": calls(str(trace))[number]}}
    buffer = io.BytesIO()
    if written in ("archive", "legacy"):
        torch.save(content, buffer, _use_new_zipfile_serialization=written == "archive")
    elif written == "pickle":
        pickle.dump(content, buffer)
    else:
        data = pickle.dumps(content)
        buffer.write(repacked(valid, lambda name, old: data if name.endswith("data.pkl") else old))
    with pytest.raises(UserError, match=r"more than tensors|not a checkpoint"):
        load(sign(path, buffer.getvalue()))
    if written == "archive":
        with pytest.raises(UserError, match="contains more than tensors"):
            newest_valid(path.parent)
    assert not trace.exists()


def test_a_compressed_record_is_not_unpacked(path: Path, valid: bytes) -> None:
    """65 kB would become 64 MiB."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}.")
        with archive.open("a/data/0", "w", force_zip64=True) as record:
            for _ in range(64):
                record.write(bytes(2**20))
    with pytest.raises(UserError, match="not a checkpoint"):
        load(sign(path, out.getvalue()))
    assert load(sign(path, repacked(valid, lambda name, data: data)))["step"] == 1
    with pytest.raises(UserError, match="not a checkpoint"):
        load(sign(path, repacked(valid, lambda name, data: data, zipfile.ZIP_DEFLATED)))


def test_a_tensor_larger_than_its_record_is_refused(path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"format": 1, "state": {"w": torch.arange(50.0)}}, buffer)
    for size in (b"K\xc8", b"J\xff\xff\xff\x7f", b"\x8a\x08" + b"\xff" * 7 + b"\x7f"):
        changed = repacked(buffer.getvalue(), lambda _, data, size=size: data.replace(b"K2", size))
        assert changed != buffer.getvalue()
        with memory_limit(2**30), pytest.raises(UserError, match="not a checkpoint"):
            load(sign(path, changed))


def test_checkpoints_that_are_not_files_are_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint.save(STATE, tmp_path / checkpoint_name(1))
    os.mkfifo(tmp_path / checkpoint_name(5))
    (tmp_path / checkpoint_name(6)).mkdir()
    (tmp_path / checkpoint_name(7)).symlink_to(tmp_path / checkpoint_name(7))
    (tmp_path / checkpoint_name(8)).symlink_to("/dev/zero")
    (tmp_path / f"step-{'9' * 200}.pt").symlink_to("nowhere")
    assert newest_valid(tmp_path) is not None
    assert not capsys.readouterr().out
    prune(tmp_path, keep=1, step=1)
    assert (tmp_path / checkpoint_name(1)).exists()
