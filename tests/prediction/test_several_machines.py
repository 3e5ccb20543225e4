"""Predictions for several machines: the throughput that they keep, the link between them, and their loaders."""

from dataclasses import replace

import pytest

from launcher.config.compose import compose
from launcher.config.gpus import efficiencies, gpus
from launcher.config.groups import machines
from launcher.plan.counted import CountedStep, Work
from launcher.plan.plan import plan_for
from launcher.prediction.machines import gpu_of, loading_rate
from launcher.prediction.offers import between_checkpoints, offers
from launcher.prediction.prediction import Predictor
from launcher.prediction.rates import Rates
from tests.counted_steps import made_up


@pytest.mark.parametrize(
    ("count", "nodes", "network", "link"),
    [(16, 2, 8.0, 0.5), (16, 2, 800.0, 1.0), (4, 4, 80.0, 5.0)],  # note: the GPUs of a machine have a link of 1 GB/s
)
def test_several_machines_lose_throughput_and_reduce_over_the_slower_link(
    count: int, nodes: int, network: float, link: float
) -> None:
    works = [Work("convolution", 10**6, 10**10, 1), Work("other", 10**7, 0, 3)]
    step = CountedStep(64, (), works, works, 10**10, 0)
    values = {**efficiencies(), "nodes": {"doubling": 0.9, "network": 0.5}, "overlap": 0.0}
    config = compose(["cuda_graphs=on"]).config
    found = Rates(replace(gpus()["A100 40GB"], link=1.0), count, values, nodes, network).parts(step, config)
    kept = values["stacks"]["eager"]["ranks"] * 0.9 ** {2: 1, 4: 2}[nodes]
    ring = 2 * (count - 1) / count * 10 / link
    assert found.all_reduce == pytest.approx((found.arithmetic + found.memory) * (1 / kept - 1) + ring)


def test_machines_load_their_own_parts_of_a_batch() -> None:
    values, machine = efficiencies(), machines()["p4d_24xlarge"]
    words = ["recipe=mild", "dataset=imagenet"]
    one, two = (plan_for(compose([*words, f"launch.nnodes={nodes}"]).config, 8 * nodes) for nodes in (1, 2))
    assert loading_rate(two, machine, 176**2, values) == pytest.approx(2 * loading_rate(one, machine, 176**2, values))


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_each_spot_machine_has_its_price_and_its_preemptions(nodes: int) -> None:
    """A preemption of one machine interrupts all."""
    machine, assumed = machines()["p4d_24xlarge"], efficiencies()["spot"]
    config = compose(["recipe=mild", "dataset=imagenet", f"launch.nnodes={nodes}"]).config
    plan = plan_for(config, 8 * nodes)
    prediction = Predictor(plan, made_up(plan)).on(machine, gpu_of(machine))
    on_demand, spot = offers(plan, prediction)
    lost = 60 * assumed["minutes_until_restart"] + between_checkpoints(plan, prediction) / 2
    more = nodes * assumed["interruptions_an_hour"] * lost / 3600
    assert spot.wall.seconds == pytest.approx((1 + more) * on_demand.wall.seconds)
    assert spot.cost is not None
    assert spot.cost.seconds == pytest.approx(nodes * (machine.spot_per_hour or 0) * spot.wall.seconds / 3600)
