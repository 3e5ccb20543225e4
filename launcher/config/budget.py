"""What a run may cost: an amount of money or a time, as typed."""

import re
from dataclasses import dataclass

from launcher.errors import Problem, UserError

# The word that has one.
BUDGET = "budget"
_FORM = re.compile(r"(?P<sign>\$)?(?P<amount>\d+(?:\.\d+)?)\s*(?P<unit>[a-z]*)", re.IGNORECASE)
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Budget:
    """An amount of a currency, or of seconds if that is None."""

    amount: float
    currency: str | None

    @classmethod
    def of(cls, text: str, key: str) -> "Budget":
        """Parse 25usd or 2h, the value of a key.

        Raises UserError if it is neither an amount of money nor a time.
        """
        if (match := _FORM.fullmatch(text.strip())) and float(match["amount"]) > 0:
            unit, amount = match["unit"], float(match["amount"])
            if not match["sign"] and unit.lower() in _SECONDS:
                return cls(amount * _SECONDS[unit.lower()], None)
            if (match["sign"] and unit.lower() in ("", "usd")) or (not match["sign"] and len(unit) == 3):
                return cls(amount, unit.upper() or "USD")
        raise UserError(Problem("must be money such as 25usd, or a time such as 2h or 90min", key, text))
