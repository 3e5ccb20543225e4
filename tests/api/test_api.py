"""The functions for notebooks and other programs, by a wheel in an empty folder and in this process."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

import launcher
from tests.networks import tiny
from tests.runs import SMALL, Train, same
from tests.saved_runs import finished
from tests.wheels import ROOT, build, install

WORDS = [*SMALL, "epochs=2"]


@pytest.mark.system
def test_the_page_runs_in_an_empty_folder_with_the_wheel(tmp_path: Path) -> None:
    site = install(build(tmp_path / "built"), tmp_path / "site")
    page = (ROOT / "docs" / "using.md").read_text()
    (code,) = re.findall(r"^```python\n(import launcher\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    here = tmp_path / "here"
    (here / "images").mkdir(parents=True)
    Image.new("RGB", (40, 50), "red").save(here / "images" / "a.png")
    lines = [f"    {line}" for line in code.splitlines()[1:]]
    shown = "    print(plan.total_steps, len(top1), rows[0].epochs_done, model.network.training, predictions[0].file)"
    (here / "script.py").write_text("\n".join(["import launcher", "if __name__ == '__main__':", *lines, shown]))
    process = subprocess.run(
        [sys.executable, "script.py"], cwd=here, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1] == "8 3 3.0 False images/a.png"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_of_this_process_stops_at_a_signal_and_resumes_to_the_bits_of_a_whole_one(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("launcher.models.resnet.library_network", tiny)
    handlers, environment = signal.getsignal(number), dict(os.environ)
    whole = launcher.train(*WORDS, "run_name=whole", in_this_process=True)
    assert whole.finished
    assert [record["epoch"] for record in whole.records()] == [1, 2]
    stopping = threading.Thread(target=_stop_in, args=(tmp_path / "runs" / "stopped", number))
    stopping.start()
    stopped = launcher.train(*WORDS, "run_name=stopped", in_this_process=True)
    stopping.join()
    assert not stopped.finished
    assert launcher.resume(stopped.path, in_this_process=True).finished
    states = [Train(tmp_path).decided(run.path) for run in (whole, stopped)]
    assert same(*states)
    assert (signal.getsignal(number), dict(os.environ)) == (handlers, environment)


def _stop_in(folder: Path, number: signal.Signals) -> None:
    while not (folder / "metrics.jsonl").exists() or b'"train"' not in (folder / "metrics.jsonl").read_bytes():
        time.sleep(0.005)
    os.kill(os.getpid(), number)


def test_an_error_in_training_is_raised_with_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("launcher.models.resnet.library_network", tiny)
    monkeypatch.setattr("launcher.training.step.TrainStep.prepare", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        launcher.train(*WORDS, in_this_process=True)
    with pytest.raises(launcher.UserError, match=r"launch\.nproc=1"):
        launcher.train(*WORDS, "launch.nproc=2", in_this_process=True)


def test_images_are_predicted_and_none_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("launcher.models.resnet.library_network", tiny)
    run = launcher.train(*WORDS, "epochs=1", "schedule.warmup=0ba", in_this_process=True)
    Image.new("RGB", (40, 50), "red").save(tmp_path / "a.png")
    (image,) = launcher.predict(run.path, [tmp_path / "a.png"], top=2)
    assert (image.file, len(image.classes)) == (str(tmp_path / "a.png"), 2)
    with pytest.raises(launcher.UserError, match="no images"):
        launcher.predict(run.path, [])


@pytest.mark.parametrize("fit", ["crop", "pad"])
def test_arrays_are_predicted_as_files_are_and_others_are_refused(
    fit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.models.resnet.library_network", tiny)
    run = finished(tmp_path / "runs", "loss=cross_entropy", f"image.fit={fit}")
    random, files, arrays = np.random.default_rng(3), [], []
    for number, (shape, orientation) in enumerate([((40, 50, 3), 1), ((90, 30, 3), 6), ((31, 93, 3), 3)]):
        exif = Image.Exif()
        exif[274] = orientation
        Image.fromarray(random.integers(0, 256, shape, np.uint8)).save(tmp_path / f"{number}.png", exif=exif)
        files.append(tmp_path / f"{number}.png")
        arrays.append(np.asarray(ImageOps.exif_transpose(Image.open(files[-1]))))
    model = launcher.load(run.path)
    predicted = model.predict(arrays, top=2)
    assert predicted == [image.classes for image in launcher.predict(run.path, files, top=2)]
    (alone,) = model.predict(np.stack(arrays[:1]), top=2)
    assert alone == [(name, pytest.approx(share, rel=1e-5)) for name, share in predicted[0]]
    assert model.predict([]) == []
    wrong = {
        "dataset.channels=4 dataset.dtype=uint8, not 3 of uint8": np.zeros((9, 9, 4), np.uint8),
        "dataset.channels=1 dataset.dtype=uint8": np.zeros((9, 9), np.uint8),
        "dataset.channels=3 dataset.dtype=float64": np.zeros((9, 9, 3)),
        r"shape \[0, 9, 3\] is no image; pass \[height, width, 3\] of uint8": np.zeros((0, 9, 3), np.uint8),
        r"shape \[9\] is no image": np.zeros(9, np.uint8),
    }
    for message, array in wrong.items():
        with pytest.raises(launcher.UserError, match=message):
            model.predict([arrays[0], array])


def test_wrong_words_are_one_error_with_all_of_them() -> None:
    with pytest.raises(launcher.UserError) as caught:
        launcher.compose("epochz=3", "batch_size=0")
    assert [problem.key for problem in caught.value.problems] == ["batch_size", "epochz"]
