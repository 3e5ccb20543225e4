"""`train schema`: the resolved config of every recipe is valid, and what the command refuses by type is not."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from launcher.config import recipes
from launcher.config.compose import compose
from launcher.config.resolved import as_mapping
from tests.commands import output_of


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(output_of("schema"))
    Draft202012Validator.check_schema(read)
    return read


def resolved(*words: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(json.dumps(as_mapping(compose([*words]).config)))
    return values


@pytest.mark.parametrize("recipe", [recipe.name for recipe in recipes.listing()])
def test_the_config_of_a_recipe_is_valid(recipe: str, schema: dict[str, Any]) -> None:
    Draft202012Validator(schema).validate(resolved(f"recipe={recipe}"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epochs", 0),
        ("epochs", "3"),
        ("epohs", 3),
        ("precision", "fp8"),
        ("model", {"name": "resnet"}),
        ("optimizer.lr", -1.0),
        ("optimizer.alpha", 1.0),
        ("image.scale", [0.1]),
        ("algorithms.ema", {}),
        ("algorithms.emma", {}),
    ],
)
def test_values_of_wrong_types_are_invalid(key: str, value: object, schema: dict[str, Any]) -> None:
    values = inner = resolved("recipe=mild")
    *groups, name = key.split(".")
    for group in groups:
        inner = inner[group]
    inner[name] = value
    assert not Draft202012Validator(schema).is_valid(values)


def test_options_are_listed_with_their_values_and_keys_are_described(schema: dict[str, Any]) -> None:
    keys = schema["properties"]
    hot = keys["hardware"]["x-options"]["p5_48xlarge"]
    assert (hot["values"]["gpus"], keys["epochs"]["default"], keys["epochs"]["minimum"]) == (8, 10, 1)
    assert keys["dataset"]["x-options"]["shapes"]["description"]
    assert keys["algorithms"]["properties"]["sam"]["properties"]["interval"]["description"]
    parts = {"": schema, **schema["$defs"]}
    assert not [
        f"{part}.{key}"
        for part, values in parts.items()
        for key, own in values.get("properties", {}).items()
        if not own.get("description")
    ]


def test_an_option_of_the_users_is_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "algorithms").mkdir(parents=True)
    (tmp_path / "conf" / "algorithms" / "gray.yaml").write_text("_target_: torchvision.transforms.v2.Grayscale\n")
    assert "gray" in json.loads(output_of("schema"))["properties"]["algorithms"]["properties"]
