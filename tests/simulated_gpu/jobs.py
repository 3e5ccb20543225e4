"""What a worker runs; every function returns JSON."""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.config.compose import compose
from launcher.rank.group import Ranks, gather, join_ranks
from tests.simulated_gpu.cases import Case
from tests.simulated_gpu.torch_sim import native, register_collectives

STOP_AFTER = 4


def train(cases: Sequence[dict[str, Any]], orders: Sequence[str], images: str) -> dict[str, Any]:
    """Train each case in each order, the last one stopped and resumed; return what is wrong, and counts, by name."""
    from tests.simulated_gpu import runs

    register_collectives()
    runs.prepare()
    expected: dict[Any, runs.Result] = {}
    outcomes = {}
    with join_ranks(compose([]).config) as ranks:
        for values in cases:
            case, start = Case.of(values), time.perf_counter()
            problems: list[str] = []
            counts: dict[str, Any] = {}
            for order in orders:
                with tempfile.TemporaryDirectory() as folder:
                    stop = STOP_AFTER if order == orders[-1] and len(orders) > 1 else None
                    result = _outcome(case, ranks, Path(folder), Path(images), order, stop)
                if isinstance(result, str):
                    problems.append(f"{order}: {result}")
                    break
                first = expected.setdefault((case.words, case.loader), result)
                # note: a resume gives all ranks the statistics of rank 0
                wrong = [] if stop is not None and ranks.rank else runs.differences(first, result)
                problems += [f"{order}: {text}" for text in wrong]
                if order == orders[0]:
                    counts = {name: getattr(result, name) for name in ("launches", "waits", "captures")} | {"ahead": 0}
                counts["ahead"] = max(counts["ahead"], result.ahead)
            others = sorted(native.contexts() - {ranks.local_rank})
            problems += [f"a context on devices {others}, of other ranks"] if others else []
            outcomes[case.name] = {"problems": problems, "seconds": time.perf_counter() - start} | counts
            print(f"{case.name}: {outcomes[case.name]}", file=sys.stderr, flush=True)
            if problems and ranks.world_size > 1:
                os._exit(1)  # note: other ranks would wait
    return outcomes


def _outcome(case: Case, ranks: Ranks, folder: Path, images: Path, order: str, stop: int | None) -> Any:
    """Return a run's result, or the line of its failure."""
    from tests.simulated_gpu import runs

    try:
        return runs.train_case(case, ranks, folder / "run", images, order, stop)
    except Exception as error:
        import traceback

        traceback.print_exc()
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def train_as_mps(cases: Sequence[dict[str, Any]], images: str) -> dict[str, Any]:
    """Train each case, and again without what Apple's GPUs lack; return what is wrong, by name."""
    import torch

    from launcher.compute import accelerator
    from tests.simulated_gpu import runs
    from tests.simulated_gpu.torch_sim import may_wait

    runs.prepare()
    unscale = torch.amp.GradScaler.unscale_

    def unscaled(*arguments: Any) -> None:
        # note: for mps torch does not compute it in float64
        native.as_mps(False)
        unscale(*arguments)
        native.as_mps("sim" in accelerator._WITHOUT_STREAMS)

    torch.amp.GradScaler.unscale_ = unscaled  # type: ignore[method-assign]
    kinds = (accelerator._WITHOUT_STREAMS, accelerator._WITHOUT_FLOAT64, accelerator._WITHOUT_FLAGS)
    outcomes: dict[str, Any] = {}
    with join_ranks(compose([]).config) as ranks:
        for values in cases:
            case, results = Case.of(values), []
            for as_mps in (False, True):
                native.as_mps(as_mps)
                for kind in kinds:
                    (kind.add if as_mps else kind.discard)("sim")
                with tempfile.TemporaryDirectory() as folder:
                    results.append(may_wait(_outcome)(case, ranks, Path(folder), Path(images), "eager", None))
            wrong = [one for one in results if isinstance(one, str)]
            # note: averages and metrics sum in float32 there, and libraries keep other tensors in their state
            outcomes[case.name] = wrong or runs.differences(*results, parts=("model",))
    return outcomes


def resume_in_time(words: Sequence[str]) -> dict[str, Any]:
    """Kill and resume a captured run whose epochs its measured steps fix; return what differs from a whole run."""
    from tests.simulated_gpu import runs, timed

    register_collectives()
    runs.prepare()
    with join_ranks(compose([]).config) as ranks, tempfile.TemporaryDirectory() as folder:
        # note: rank 0 saves the checkpoints that all resume
        return timed.differences(tuple(words), ranks, Path(gather(folder)[0]))


def hazards() -> dict[str, bool]:
    """Return of each hazard whether the device shows it."""
    from tests.simulated_gpu.hazards import shown

    return shown()


def largest_batch(words: Sequence[str], limit: int) -> dict[str, int]:
    """Search the batch that fills a device's memory, without a limit and with one in MiB; return both, and the peak."""
    import torch

    from launcher.measure.batch_size import fits, largest
    from launcher.rank.group import single_rank, use_device
    from tests.networks import use_tiny
    from tests.simulated_gpu.torch_sim import Memory
    from tests.trainers import SMALL

    torch.set_num_threads(1)
    use_tiny()
    small = [word for word in SMALL if word != "dataloader.workers=0"]
    config, rank = compose([*small, "dataloader=synthetic", *words]).config, single_rank(use_device("sim", 0))
    unlimited = largest(lambda images: fits(config, images, rank), 16)
    Memory.set_limit(native.memory()[2] + (limit << 20))
    limited = largest(lambda images: fits(config, images, rank), 16)
    return {"unlimited": unlimited, "limited": limited}


def count_steps(choices: Sequence[str]) -> list[list[Any]]:
    """Return rows of the table of a step's counts."""
    from tests.simulated_gpu import step_table

    return step_table.rows(choices)
