"""Judges alerts by the samples of real processes, as Prometheus would, which reads them now and
then."""

from __future__ import annotations

import re
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from observability.alert import Alert

Labels = tuple[tuple[str, str], ...]
_COMBINE: Mapping[str, Callable[[Sequence[float]], float]] = {"sum": sum, "max": max, "min": min}


@dataclass(frozen=True, slots=True)
class Scrape:
    """What all processes said at one moment."""

    at_s: float
    samples: Mapping[tuple[str, Labels], float]

    def of(self, metric: str, where: Mapping[str, str]) -> dict[Labels, float]:
        """The series of a metric whose labels match."""
        return {
            labels: value
            for (name, labels), value in self.samples.items()
            if name == metric
            and all(re.fullmatch(want, dict(labels).get(key, "")) for key, want in where.items())
        }


def scrape(pods: Mapping[str, str], *, cluster: str = "main", at_s: float | None = None) -> Scrape:
    """Reads /metrics of processes, by pod and URL; those that don't answer are missing, as they are
    for Prometheus. The labels that the scraper adds are added."""
    samples = {}
    for pod, url in pods.items():
        try:
            with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            continue
        added = {"namespace": "queues", "cluster": cluster, "pod": pod}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = tuple(sorted((added | sample.labels).items()))
                samples[sample.name, labels] = sample.value
    return Scrape(time.time() if at_s is None else at_s, samples)


def fires(alert: Alert, scrapes: Sequence[Scrape]) -> dict[Labels, float]:
    """The groups of labels for which its expression holds, with their values; how long it has to
    hold isn't looked at."""
    left = _grouped(alert, _values(alert, alert.metric, scrapes))
    if isinstance(alert.bound, str):
        factor, _, metric = alert.bound.partition(" * ")
        bounds = _grouped(alert, scrapes[-1].of(metric, {}))
        return {
            group: value
            for group, value in left.items()
            if group in bounds and _holds(alert, value, float(factor) * bounds[group])
        }
    return {group: value for group, value in left.items() if _holds(alert, value, alert.bound)}


def _holds(alert: Alert, value: float, bound: float) -> bool:
    match alert.compare:
        case ">":
            return value > bound
        case "<":
            return value < bound
        case "!=":
            return value != bound


def _values(alert: Alert, metric: str, scrapes: Sequence[Scrape]) -> dict[Labels, float]:
    """Each series' value: the last one, or what it did over all scrapes."""
    now = scrapes[-1].of(metric, alert.where or {})
    if alert.age:
        return {labels: scrapes[-1].at_s - value for labels, value in now.items()}
    if not alert.over:
        return now
    found = {}
    for labels in now:
        seen = [
            each.samples[metric, labels] for each in scrapes if (metric, labels) in each.samples
        ]
        if len(seen) < 2:
            continue
        steps = list(zip(seen, seen[1:], strict=False))
        if alert.over == "changes":
            found[labels] = float(sum(a != b for a, b in steps))
            continue
        # A counter that is smaller than before began anew at zero.
        grown = sum(b - a if b >= a else b for a, b in steps)
        seconds = scrapes[-1].at_s - scrapes[0].at_s
        found[labels] = grown / seconds if alert.over == "rate" else grown
    return found


def _grouped(alert: Alert, values: Mapping[Labels, float]) -> dict[Labels, float]:
    groups: dict[Labels, list[float]] = defaultdict(list)
    for labels, value in values.items():
        known = dict(labels)
        groups[tuple((name, known.get(name, "")) for name in alert.by)].append(value)
    return {group: _COMBINE[alert.combine](each) for group, each in groups.items()}
