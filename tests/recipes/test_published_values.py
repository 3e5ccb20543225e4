"""Every recipe against published_values.yaml, the values of the publications."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.config.compose import compose
from launcher.config.layers import leaves

TABLE = yaml.safe_load(Path(__file__).with_name("published_values.yaml").read_text())
RECIPES, ABLATIONS = TABLE["recipes"], TABLE["ablations"]


def resolved(name: str, *words: str) -> dict[str, Any]:
    """Return the values of a recipe's run config by dotted key."""
    return dict(leaves(asdict(compose([f"recipe={name}", *words]).config)))


def algorithms_of(name: str) -> set[str]:
    """Return the active algorithms: those of an ablation are its base's with its changes."""
    if name in RECIPES:
        return set(RECIPES[name]["algorithms"])
    changed = ABLATIONS[name]["changes"].get("algorithms", {})
    off = {algorithm for algorithm, values in changed.items() if values and set(values.values()) == {None}}
    return (algorithms_of(ABLATIONS[name]["base"]) | changed.keys()) - off


def fidelity_of(name: str) -> dict[str, Any]:
    entry = RECIPES.get(name) or ABLATIONS[name]
    if "fidelity" not in entry and "base" in entry:
        return fidelity_of(entry["base"])
    return dict(leaves(entry.get("fidelity", {})))


@pytest.mark.parametrize("name", [name for name, entry in RECIPES.items() if "values" in entry])
def test_a_recipe_has_the_published_values(name: str) -> None:
    entry, published = RECIPES[name], {}
    for values in (*(TABLE["shared"][other] for other in entry.get("like", ())), entry["values"]):
        published |= dict(leaves(values))
    values = resolved(name)
    assert {key: values.get(key) for key in published} == published
    assert entry["source"]


@pytest.mark.parametrize("name", [*RECIPES, *ABLATIONS])
def test_fidelity_changes_exactly_the_values_in_which_the_published_code_differs(name: str) -> None:
    ours, published = resolved(name), resolved(name, "fidelity=published")
    assert ours.keys() == published.keys()
    changed = {key: value for key, value in published.items() if value != ours[key]}
    assert changed == {"fidelity": "published", **fidelity_of(name)}


@pytest.mark.parametrize("name", [*RECIPES, *ABLATIONS])
def test_exactly_the_published_algorithms_are_on(name: str) -> None:
    assert set(compose([f"recipe={name}"]).config.algorithms) == algorithms_of(name)


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_is_its_base_except_for_its_change(name: str) -> None:
    changes = dict(leaves(ABLATIONS[name]["changes"]))
    after, before = resolved(name), resolved(ABLATIONS[name]["base"])
    # note: without any algorithm `algorithms` itself is a value
    differing = {key for key in {*after, *before} - {"recipe", "algorithms"} if after.get(key) != before.get(key)}
    assert {key: after.get(key) for key in changes} == changes
    assert {part(key) for key in differing} <= {part(key) for key in changes}


def part(key: str) -> str:
    """Return `algorithms.sam` for `algorithms.sam.interval`, `loss` for `loss.name`."""
    depth = 2 if key.startswith("algorithms.") else 1
    return ".".join(key.split(".")[:depth])


@pytest.mark.parametrize(("epochs", "mixup"), [(50, None), (90, None), (250, 0.2)])
def test_nvidia_uses_mixup_only_for_250_epochs(epochs: int, mixup: float | None) -> None:
    assert resolved("nvidia_v1_5", f"epochs={epochs}").get("algorithms.mixup.alpha") == mixup
