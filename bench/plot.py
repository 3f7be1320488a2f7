"""The results as an image: one panel for each measurement, one bar for each contender."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.report import amount

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from bench.measure import Result
    from bench.report import Report

__all__ = ["draw"]

_OURS, _THEIRS, _TARGET = "#2a6f97", "#b8c4cc", "#c1121f"


def draw(report: Report, path: Path) -> None:
    """Write the image to `path`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    results = [result for result in report.results if result.samples]
    if not results:
        return
    heights = [1.2 + 0.45 * len(result.samples) for result in results]
    figure = Figure(figsize=(9, sum(heights) + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle("\n".join(report.machine.lines()[:2]), fontsize=8)
    panels = figure.subplots(len(results), 1, squeeze=False, height_ratios=heights)
    for result, panel in zip(results, panels[:, 0], strict=True):
        _panel(result, panel)
    figure.savefig(path, dpi=120)


def _panel(result: Result, panel: Axes) -> None:
    """Bars are medians, dots are samples, dashed lines are the targets for the subject."""
    names = list(result.samples)[::-1]
    medians = [result.median(name) or 0.0 for name in names]
    colours = [_OURS if name == result.subject else _THEIRS for name in names]
    labels = [f"{name}: {amount(median)}" for name, median in zip(names, medians, strict=True)]
    panel.barh(labels, medians, color=colours)
    for row, name in enumerate(names):
        samples = result.samples[name]
        panel.plot(samples, [row] * len(samples), ".", color="black", markersize=3)
    for target in result.targets:
        base = result.median(target.times) if target.times else 1.0
        if base:
            panel.axvline(target.bound * base, color=_TARGET, linestyle="--", linewidth=1)
    panel.set_title(result.question, fontsize=9, loc="left")
    panel.set_xlabel(result.unit, fontsize=8)
    panel.tick_params(labelsize=8)
    panel.margins(x=0.12)
