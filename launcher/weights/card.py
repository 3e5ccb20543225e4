"""The config of weights: that of a run, or of an export's model card; read without torch, to refuse at once."""

import json
from pathlib import Path
from shlex import quote
from typing import Any

from launcher.config.choices import HUB
from launcher.config.formats import facts_of
from launcher.config.resolved import note, read, typed_run
from launcher.config.schema import RunConfig
from launcher.config.similar import nearest
from launcher.errors import Problem, UserError
from launcher.records.run_folder import RunFolder, existing

CARD, WEIGHTS, ONNX = "model_card.json", "model.safetensors", "model.onnx"
# That of timm, or of the transformers library.
LIBRARY_CONFIG = "config.json"


def find_weights(weights: str) -> tuple[Path, RunConfig | None]:
    """Return the run folder or file of `model.weights`, and the config of its run; None for a file outside a run.

    Downloads a repository of the Hub unless its cache has it.

    Raises UserError if there is none, or the run has no checkpoint.
    """
    if weights.startswith(HUB):
        return from_hub(weights, "model.weights") / WEIGHTS, None
    path = Path(weights)
    run = RunFolder(path.parent.parent if path.is_file() and path.parent.name == "checkpoints" else path)
    if run.exists():
        if run.path == path and run.newest_step() is None:
            raise problem(weights, f"has no checkpoint yet; type train resume {quote(str(path))}")
        return path, read(run.config)
    path = path / WEIGHTS if (path / WEIGHTS).is_file() else path
    if not path.is_file():
        similar = nearest(path.name, {other.name for other in path.parent.glob("*")} - {path.name})
        usual = f"set one of these, {HUB}NAME/MODEL, torchvision or timm"
        hint = f"did you mean {path.parent / similar}?" if similar else usual
        raise problem(weights, f"is not a file, run folder or export; {hint}")
    return path, None


def find_trained(path: str) -> tuple[RunFolder | Path, RunConfig]:
    """Return a run folder with a checkpoint, or the folder of an export or its download, and the config of its run.

    Raises UserError for any other path, and for an export without weights or model card.
    """
    if exported := _exported_at(path):
        return exported, read_card(exported / CARD)[0]
    folder = existing(path, saved=True)
    return folder, read(folder.config)


def _exported_at(path: str) -> Path | None:
    """Return the folder of an export: its own path, that of its weights, or its download; None for a run folder."""
    if path.startswith(HUB):
        folder = from_hub(path)
        if not (folder / CARD).is_file():
            raise UserError(f"{path} has no {CARD}, so it is no published run; set model.weights to use its weights")
        return folder
    folder = Path(path)
    if folder.is_file():
        if folder.name not in (WEIGHTS, ONNX):
            raise UserError(f"{path} is a file; pass a run folder, or the output folder of train export")
        folder = folder.parent
    elif RunFolder(folder).exists() or not any((folder / name).is_file() for name in (CARD, ONNX)):
        return None
    if not (folder / WEIGHTS).is_file():
        raise UserError(
            f"{folder} has no {WEIGHTS}; type train export RUN to write it, or run the lines of an ONNX export's card"
        )
    return folder


def from_hub(text: str, key: str | None = None) -> Path:
    """Return the folder of a repository's weights and descriptions, downloaded unless the cache has them.

    Raises UserError as `hub.downloaded`; `key` is that of the text.
    """
    from launcher.weights.hub import downloaded

    return downloaded(text, (WEIGHTS, CARD, LIBRARY_CONFIG), key)


def problem(value: Path | str | None, message: str, key: str = "model.weights") -> UserError:
    """Return an error of the pretrained weights."""
    return UserError(Problem(message, key, value))


def read_card(path: Path) -> tuple[RunConfig, list[str], dict[str, Any]]:
    """Read the run's config, its class names, and what its task has computed from a model card.

    Raises UserError if the card is missing, is not JSON, or lacks a value.
    """
    try:
        card = json.loads(path.read_bytes())
        config, classes, written = typed_run(card["config"], str(path)), card["classes"], card.get("task", {})
        facts = facts_of(written)
    except FileNotFoundError:
        raise UserError(f"{path} is missing, and the weights cannot be used without it; export the run again") from None
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a model card ({type(error).__name__}: {error}); export the run again") from None
    except UserError as error:
        raise UserError(f"{path} has no valid config ({error.line}); export the run again") from None
    if removed := [name for name in written if facts.get(name) != written[name]]:
        note(f"{path}: ignoring {', '.join(removed)}, which train calibrate fitted; it is gone since version 0.3")
    expected = 0 if "tokens" in config.task.needs else config.dataset.classes
    if not isinstance(classes, list) or len(classes) != expected:
        raise UserError(f"{path} does not list the classes of its config; export the run again")
    numbers = {name: [value] * len(classes) if isinstance(value, float) else value for name, value in facts.items()}
    if set(facts) - set(config.task.facts) or not all(_is_fact(*one, len(classes)) for one in numbers.items()):
        raise UserError(
            f"{path} has other values of its task than {', '.join(config.task.facts)}; export the run again"
        )
    return config, [str(name) for name in classes], facts


def network_changes(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Return the values of each change of the library's network that an evaluation sees, by name and in order."""
    of_model = config.model.network_changes(config.dataset.channels)
    values = {name: config.algorithms[name].network_values() for name in config.algorithms.acting("change_model")}
    return of_model | {name: of_name for name, of_name in values.items() if of_name is not None}


def _is_fact(name: str, values: Any, count: int) -> bool:
    """Return whether it is the text of a tokenizer, or numbers, one for each output."""
    if name == "tokenizer":
        return values is None or isinstance(values, str)
    return isinstance(values, list) and len(values) == count and all(isinstance(one, float) for one in values)
