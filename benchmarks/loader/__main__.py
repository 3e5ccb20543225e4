"""The command of benchmarks.loader."""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import cv2
import torchvision
from rich.console import Console

import benchmarks.loader as package
from benchmarks.loader import timing
from benchmarks.loader.contenders import OPENERS, PEERS
from benchmarks.loader.files import unpacked, write_all
from benchmarks.loader.process import started
from launcher.config.compose import compose
from launcher.data.loaders.ffcv import FFCVLoader
from launcher.plan.plan import Plan


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    composed = compose(["dataloader=ffcv", "recipe=mild", "dataset=imagenet"]).config
    assert isinstance(composed.dataloader, FFCVLoader)
    assert composed.dataset.train_samples is not None
    plan = Plan(composed, 1, composed.dataset.train_samples)
    steps = dict(Counter(map(plan.view, range(plan.total_steps))))
    out = Console(width=160)
    facts: dict[str, object] = {"opencv": cv2.__version__, "torchvision": torchvision.__version__}
    with unpacked(Path(arguments.images)) as folder:
        files = write_all(folder, composed.dataloader.files)
        with ExitStack() as stack:
            starts = {name: started(name, folder, files) for name in OPENERS}
            if arguments.peers:
                starts |= {name: started(name, folder, files, Path(arguments.peers)) for name in PEERS}
            opened = {name: stack.enter_context(start) for name, start in starts.items()}
            contenders = [contender for contender in opened.values() if contender]
            if missing := [name for name, contender in opened.items() if contender is None]:
                out.print(f"not installed here, so not measured: {', '.join(missing)}")
            results = timing.measure(contenders, composed.image, arguments.sizes, arguments.repeats)
        out.print(timing.table(results, steps))
    if arguments.json:
        facts["results"] = [asdict(result) for result in results]
        Path(arguments.json).write_text(json.dumps(facts, indent=2) + "\n")
    return 0


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=package.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True, metavar="TAR", help="a tar file of JPEGs")
    parser.add_argument("--sizes", type=int, nargs="+", default=[88, 132, 176], metavar="PX")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", metavar="FOLDER", help="folder with another Pillow and DALI")
    parser.add_argument("--json", metavar="FILE", help="also write the results to this file")
    return parser.parse_args(words)


if __name__ == "__main__":
    raise SystemExit(main())
