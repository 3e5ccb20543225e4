"""Tradeoff curves with chosen points."""

from launcher_lab.study.curves import Curve, CurvePoint, StudySetting

SETTING = StudySetting("shapes", "resnet18", "1x cpu")
Values = float | tuple[float, ...]


def curve(name: str, *points: tuple[Values, Values], setting: StudySetting = SETTING) -> Curve:
    """Return a curve of (minutes, top-1) points, one per epoch; tuples have a value per seed."""

    def many(values: Values) -> tuple[float, ...]:
        return values if isinstance(values, tuple) else (values,)

    measured = (
        CurvePoint(n, many(top1), {"time": many(time), "epochs": (n,)}) for n, (time, top1) in enumerate(points, 1)
    )
    return Curve(name, name, setting, tuple(measured))
