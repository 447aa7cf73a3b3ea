"""The pipeline's result as a picture: mean arrival delay by month, the five busiest carriers.

    python plot.py http://127.0.0.1:9420 flight-delays-by-day > delays.svg

Reads the topic with `headrace.sdk.arrow` and writes SVG by hand, so that nothing else is needed.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict

from headrace.sdk import arrow

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 720, 320, 50, 20, 40
COLOURS = ["#1f6f8b", "#e07a5f", "#3d405b", "#81b29a", "#b5838d"]
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def monthly(bootstrap: str, topic: str) -> dict[str, dict[int, tuple[int, float]]]:
    """Carrier → month → flights and mean delay; a day that came twice counts once."""
    values = arrow.read_table(bootstrap, topic, columns=["value"])["value"].to_pylist()
    days = {(row["day"], row["carrier"]): row for row in map(json.loads, values)}
    sums: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0, 0.0]))
    for (day, carrier), row in days.items():
        if row.get("mean_delay") is not None:
            month = sums[carrier][int(day[5:7])]
            month[0] += row["flights"]
            month[1] += row["flights"] * row["mean_delay"]
    return {
        carrier: {month: (int(count), total / count) for month, (count, total) in found.items()}
        for carrier, found in sums.items()
    }


def svg(found: dict[str, dict[int, tuple[int, float]]]) -> str:
    """Lines over the months."""
    busiest = sorted(found, key=lambda each: -sum(count for count, _ in found[each].values()))[:5]
    means = [mean for carrier in busiest for _, mean in found[carrier].values()]
    low, high = min([0.0, *means]), max([1.0, *means])

    def at(month: int, mean: float) -> tuple[float, float]:
        x = LEFT + (month - 1) * (WIDTH - LEFT - 70) / 11
        y = TOP + (high - mean) * (HEIGHT - TOP - BOTTOM) / (high - low)
        return round(x, 1), round(y, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="14">mean arrival delay, minutes</text>',
    ]
    for mean in range(int(low // 10) * 10, int(high) + 1, 10):
        y = at(1, mean)[1]
        if y <= HEIGHT - BOTTOM + 1:
            parts.append(f'<path d="M{LEFT} {y}H{WIDTH - 70}" stroke="#dde3e8"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{mean}</text>')
    for month, name in enumerate(MONTHS, 1):
        x = at(month, low)[0]
        parts.append(f'<text x="{x}" y="{HEIGHT - 16}" text-anchor="middle">{name}</text>')
    for carrier, colour in zip(busiest, COLOURS, strict=False):
        points = [at(month, mean) for month, (_, mean) in sorted(found[carrier].items())]
        path = "L".join(f"{x} {y}" for x, y in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = points[-1]
        parts.append(f'<text x="{x + 8}" y="{y + 4}" fill="{colour}">{carrier}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(svg(monthly(*sys.argv[1:])))
