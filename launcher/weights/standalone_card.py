"""The part that model.py has in every export: its folder and its model card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
CARD: dict[str, Any] = json.loads((FOLDER / "model_card.json").read_text(encoding="utf-8"))
CLASSES: list[str] = CARD["classes"]
