"""Find out that training waits for its data."""

# Training waits if it does for more than this fraction of the time, in so many intervals in a row.
_SHARE, _INTERVALS = 0.15, 2
# Of training in an interval; in less, other programs of the machine decide.
LEAST_SECONDS = 5.0


class DataWaits:
    """Finds that training waits for its data in several intervals in a row; counts once until it recovers."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._seconds = self._waited = 0.0

    def add(self, seconds: float, waited: float) -> float | None:
        """Return the share of the steps that waits, if it has become large with a log interval.

        waited: seconds of the median rank in the interval. Intervals in less than `LEAST_SECONDS` are joined.
        """
        self._seconds, self._waited = self._seconds + seconds, self._waited + waited
        if self._seconds < LEAST_SECONDS:
            return None
        share = self._waited / self._seconds
        self._seconds = self._waited = 0.0
        self._in_a_row = self._in_a_row + 1 if share > _SHARE else 0
        return share if self._in_a_row == _INTERVALS else None
