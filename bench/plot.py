"""Draws what bench/peers.py measured.

python bench/peers.py --json peers.json
python bench/plot.py peers.json docs/performance.svg
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text: small, and searchable
matplotlib.rcParams["svg.hashsalt"] = "headrace"  # the same figures give the same file

from matplotlib import pyplot  # noqa: E402

COLOURS = {"Headrace": "#1f6f8b"}
PEER_COLOUR = "#b8c4cc"
LATENCY = "end to end at 500/s"


def label(row: dict[str, Any]) -> str:
    """What stands beside a bar."""
    flushed = ", flushed" if "fdatasync" in row["flush"] else ""
    return f"{row['system']}\n{row['acks']}{flushed}"


def spread(row: dict[str, Any], figure: str, scale: float) -> tuple[float, float, float]:
    """Median, and how far the smallest and the largest are from it."""
    values = [each[figure] * scale for each in row["rounds"]]
    median = statistics.median(values)
    return median, median - min(values), max(values) - median


def bars(axes: Any, rows: list[dict[str, Any]], figure: str, scale: float, unit: str) -> None:
    """A panel: one bar a row, a whisker from the smallest to the largest round."""
    medians, below, above = zip(*[spread(row, figure, scale) for row in rows], strict=True)
    axes.barh(
        [label(row) for row in rows],
        medians,
        xerr=[below, above],
        color=[COLOURS.get(row["system"], PEER_COLOUR) for row in rows],
        error_kw={"ecolor": "#444444", "elinewidth": 1},
    )
    for place, median in enumerate(medians):
        axes.text(0, place, f" {median:,.2f}", va="center", fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(unit, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Read the report, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    rows = json.loads(options.report.read_text())["rows"]
    works = [work for work in dict.fromkeys(row["work"] for row in rows) if work != LATENCY]
    figure, panels = pyplot.subplots(3, 2, figsize=(10, 9.5))
    for axes, work in zip(panels.flat, works, strict=False):
        bars(
            axes, [row for row in rows if row["work"] == work], "records_per_s", 1e-6, "M records/s"
        )
        axes.set_title(work, fontsize=9, loc="left")
    live = [row for row in rows if row["work"] == LATENCY]
    for axes, name in zip(panels.flat[len(works) :], ("p50", "p99"), strict=False):
        bars(axes, live, f"{name}_ms", 1, "ms")
        axes.set_title(f"{LATENCY}: {name}", fontsize=9, loc="left")
    figure.tight_layout()
    figure.savefig(options.picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
