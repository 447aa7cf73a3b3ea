"""The rates of `bench/spark.py --json` as bars: python bench/spark_plot.py spark.json > spark.svg

Plain SVG, so that nothing needs to be installed.
"""

from __future__ import annotations

import json
import statistics
import sys

BARS = [
    ("Batch read, all columns", [
        ("ready-made Arrow, no queue", "generator, rows/s"),
        ("Headrace", "headrace, rows/s"),
        ("rows out of nothing", "tuples, rows/s"),
        ("Headrace read as rows", "headrace as tuples, rows/s"),
    ]),
    ("Stream, availableNow, 1,000,000 a trigger", [
        ("ready-made Arrow, no queue", "generator stream, rows/s"),
        ("Headrace", "headrace stream, rows/s"),
    ]),
    ("Sink", [
        ("without keys", "sink, rows/s"),
        ("with keys", "sink with keys, rows/s"),
    ]),
]  # fmt: skip
WIDTH, LEFT, BAR, GAP, HEAD = 720, 210, 18, 6, 30


def text(x: float, y: float, said: str, *, anchor: str = "start", weight: str = "normal") -> str:
    """A line of text."""
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-weight="{weight}">{said}</text>'
    )


def draw(found: dict[str, list[float]]) -> str:
    """The picture: bars are medians, whiskers the smallest and the largest round."""
    largest = max(max(found[key]) for _, bars in BARS for _, key in bars)
    scale = (WIDTH - LEFT - 110) / largest
    lines, y = [], 8.0
    for title, bars in BARS:
        lines.append(text(8, y + 18, title, weight="bold"))
        y += HEAD
        for name, key in bars:
            rates = found[key]
            middle, low, high = statistics.median(rates), min(rates), max(rates)
            colour = "#2b6cb0" if "nothing" not in name and "no queue" not in name else "#a0aec0"
            lines.append(text(LEFT - 8, y + 13, name, anchor="end"))
            lines.append(
                f'<rect x="{LEFT}" y="{y:.0f}" width="{middle * scale:.1f}" height="{BAR}"'
                f' fill="{colour}"/>'
            )
            lines.append(
                f'<path d="M{LEFT + low * scale:.1f} {y + BAR / 2:.0f}H{LEFT + high * scale:.1f}"'
                ' stroke="black"/>'
            )
            shown = f"{middle / 1e6:.2f} M rows/s"
            lines.append(text(LEFT + high * scale + 6, y + 13, shown))
            y += BAR + GAP
        y += 8
    body = "\n".join(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y:.0f}"'
        f' font-family="sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>'
    )


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        print(draw(json.load(file)))
