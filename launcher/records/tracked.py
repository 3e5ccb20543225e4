"""What a run folder keeps of its run at a tracking server, and what the run is found by there."""

from __future__ import annotations

from launcher.config.schema import RunConfig
from launcher.records.folder import RunFolder


def kept_id(folder: RunFolder, server: str) -> str | None:
    """The run's id there, or None before its first record."""
    path = folder.path / f"{server}.id"
    return path.read_text(encoding="ascii").strip() or None if path.is_file() else None


def keep_id(folder: RunFolder, server: str, run_id: str) -> None:
    """Have a resumed run go on in the same run there; written atomically."""
    path = folder.path / f"{server}.id"
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(f"{run_id}\n", encoding="ascii")
    temporary.replace(path)


def labels(config: RunConfig) -> dict[str, str]:
    """The few values that runs are filtered by."""
    return {
        "recipe": config.recipe or "none",
        "model": config.model.name,
        "dataset": config.dataset.name,
        "seed": str(config.seed),
    }
