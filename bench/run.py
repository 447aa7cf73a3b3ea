"""`make bench`: the figures that Headrace publishes, on a broker of its own.

    python bench/run.py [--quick] [--json FILE]

Runs `headrace bench ...` for throughput and latency; --json also writes all reports to a file.
bench/startup.py and bench/idle_polls.py measure what needs more time and disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from pathlib import Path

from own_broker import data_folder, own_broker

from headrace.cli import tables
from headrace.cli.output import print_tables

PLAN: dict[str, list[str]] = {
    "send_many": ["produce", "--mode", "send_many", "--acks", "1"],
    "enqueue": ["produce", "--mode", "enqueue", "--acks", "1"],
    "send_many, acks=all, flushed": ["produce", "--mode", "send_many", "--acks", "all"],
    "fetch": ["consume", "--mode", "fetch"],
    "async for": ["consume", "--mode", "iterate"],
    "latency at 500/s": ["latency", "--rate", "500", "--acks", "1"],
    "latency at 500/s, acks=all, flushed": ["latency", "--rate", "500", "--acks", "all"],
    "latency at 20,000/s": ["latency", "--rate", "20000", "--acks", "1"],
}
QUICK = ["--records", "2000", "--rounds", "2"]


def bench(bootstrap: str, arguments: list[str]) -> dict:
    """One `headrace bench`, in a process of its own as a user would run it."""
    command = [sys.executable, "-m", "headrace.cli.main", "--bootstrap", bootstrap, "bench"]
    done = subprocess.run([*command, *arguments, "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def row(name: str, report: dict) -> tuple[str, ...]:
    """The figures that matter of a report."""
    summary = report["summary"]

    def shown(figure: str) -> str:
        spread = summary[figure]
        digits = ",.0f" if spread["median"] >= 1_000 else ".2f"
        return f"{spread['median']:{digits}} ({spread['min']:{digits}}-{spread['max']:{digits}})"

    settings = report["settings"]
    how = f"acks {settings.get('acks', '-')}, flush {settings['flush']}"
    if report["bench"] == "latency":
        return (name, how, f"p50 {shown('p50_ms')} ms", f"p99 {shown('p99_ms')} ms")
    cpu = summary["client_cpu_us_per_record"]["median"]
    return (name, how, f"{shown('records_per_s')} records/s", f"{cpu:.2f} us client CPU a record")


async def main() -> None:
    """Run the plan and show it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small rounds, to see that it works")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    reports = {}
    for name, arguments in PLAN.items():
        with data_folder() as folder:
            async with own_broker(folder) as cluster:
                extra = QUICK if options.quick else []
                reports[name] = await asyncio.to_thread(
                    bench, cluster.bootstrap, [*arguments, *extra]
                )
        print(f"{name}: done", file=sys.stderr)
    environment = reports["fetch"]["environment"]
    where = ", ".join(f"{key} {value}" for key, value in environment.items())
    columns = ("100-byte values, 1 partition", "level", "median (min-max)", "")
    rows = [row(name, report) for name, report in reports.items()]
    print_tables(where, tables.table(columns, rows))
    if options.json:
        options.json.write_text(json.dumps(reports, indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
