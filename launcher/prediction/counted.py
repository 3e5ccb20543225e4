"""What is counted of a step; imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """Equal kernels: their kind, the bytes that each moves, its matrix operations, and their number.

    kind: convolution, depthwise, matrix, eigenvectors, qr, batch norm, pool, strided, or other. `Call` explains the
    last three fields.
    """

    kind: str
    moved: int
    operations: int
    count: int
    group_width: int = 0
    aligned: bool = True
    fill: float = 1.0


@dataclass(frozen=True)
class CountedStep:
    """One kind of step on a rank: its eager and fused kernels, the bytes of gradients, and the peak memory."""

    view: int
    acting: tuple[str, ...]
    eager: list[Work]
    fused: list[Work]
    gradient_bytes: int
    peak_bytes: int
