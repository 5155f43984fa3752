"""Costs along an axis: the fitted exponent, the exponent of the last step, and a picture. Pure but for the picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

STEEP = 1.15  # more than linear, with some room for noise
Points = dict[int, list[float]]  # size → seconds of each turn


@dataclass(frozen=True, slots=True)
class Curve:
    """One cost along one axis."""

    what: str
    axis: str  # objects or partitions
    points: tuple[tuple[int, float], ...]  # size, median seconds

    @property
    def exponent(self) -> float:
        return fit([size for size, _ in self.points], [seconds for _, seconds in self.points])

    @property
    def last_step(self) -> float:
        (small, less), (large, more) = self.points[-2:]
        return math.log(more / less) / math.log(large / small)

    @property
    def steep(self) -> bool:
        return max(self.exponent, self.last_step) > STEEP


def fit(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The slope of the least-squares line through the logarithms."""
    xs, ys = [math.log(one) for one in sizes], [math.log(one) for one in seconds]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum((x - mean_x) ** 2 for x in xs)


def curves_of(seconds: dict[str, Points], axis: str) -> list[Curve]:
    return [
        Curve(what, axis, tuple((size, median(turns)) for size, turns in sorted(points.items())))
        for what, points in seconds.items()
    ]


def draw(curve: Curve, folder: Path) -> Path:
    """One curve as a picture, both axes logarithmic, with the line of a linear cost."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    sizes, seconds = zip(*curve.points, strict=True)
    figure, axes = plt.subplots(figsize=(5, 3.4), dpi=90)
    axes.loglog(sizes, seconds, "o-", label=f"measured, exponent {curve.exponent:.2f}")
    axes.loglog(sizes, [seconds[0] * size / sizes[0] for size in sizes], ":", color="grey", label="linear")
    axes.set(xlabel=curve.axis, ylabel="seconds", title=f"{curve.what}, by {curve.axis}")
    axes.legend()
    figure.tight_layout()
    path = folder / f"{curve.what.replace(',', '').replace(' ', '_')}_by_{curve.axis}.png"
    figure.savefig(path)
    plt.close(figure)
    return path
