"""The folder of a speedrun on few images, for tests of its verification."""

from pathlib import Path

from launcher_lab.study.tracks import rules, track
from launcher_lab.study.verify import result_of, write_record
from tests.runs import SMALL, Here

# Words of its runs; the track is far below what they reach.
TRACK = "own:0"
WORDS = [
    *SMALL,
    "algorithms=[]",
    "loss=cross_entropy",
    "epochs=2",
    "optimizer.lr=0.05",
    "optimizer.reference_batch_size=16",
]


def write_speedrun(here: Here, name: str) -> Path:
    """Train the runs of a record in this process, and write it."""
    folder = here.folder / name
    for seed in range(rules().runs):
        here(*WORDS, f"runs={folder}", f"seed={seed}", f"run_name=seed{seed}")
    write_record(folder, result_of(folder, track(TRACK)))
    return folder
