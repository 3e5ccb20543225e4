"""How many epochs a run has."""


def dilated_epochs(epochs: int, dilate: float) -> int:
    """Return a run's epochs after dilation, rounded, at least one."""
    return max(1, round(epochs * dilate))
