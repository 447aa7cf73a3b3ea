"""Spark over the demo's topic: a batch and a stream compute the figures, the stream writes them
into another topic, and both must be what plain Python has computed.

The job (`spark_job`) runs in a process of its own, because Spark talks a lot and wants its own
environment. Without PySpark or Java this part is left out with a line that says so.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
from rich.console import Console

from headrace.demo.checks import CarrierTotals, Check
from headrace.demo.java import JavaMissing, java_home
from headrace.sdk import Admin, Consumer

TARGET = "flight-delays"
TARGET_PARTITIONS = 2

JOB_S = 300.0
"""Longer than a slow machine needs for the job; then it is given up."""

_MODULES = ("pyspark", "pyarrow", "pyspark_headrace")


class _Told(msgspec.Struct):
    """What the job prints."""

    spark: str
    totals: dict[str, tuple[int, int, int]]
    batch_s: float
    stream_s: float
    micro_batches: list[int]


class _Written(msgspec.Struct):
    """What the stream writes for a carrier."""

    flights: int
    arrived: int
    minutes: int


class Failed(Exception):
    """The job didn't end well; the message is the end of what it said."""


async def run_spark(
    bootstrap: str,
    topic: str,
    expected: Mapping[bytes, CarrierTotals],
    *,
    replicas: int,
    console: Console,
) -> list[Check]:
    """Runs the job over `topic` and compares; no checks if Spark isn't there."""
    missing = [name for name in _MODULES if importlib.util.find_spec(name) is None]
    if missing:
        console.print(f"Spark left out: no {missing[0]} here; pip install 'headrace[demo]'")
        return []
    with tempfile.TemporaryDirectory(prefix="headrace-demo-spark-") as name:
        folder = Path(name)
        try:
            java = java_home(folder)
        except JavaMissing as error:
            console.print(f"Spark left out: {error}")
            return []
        async with Admin(bootstrap) as admin:
            await admin.create_topic(TARGET, partitions=TARGET_PARTITIONS, replicas=replicas)
        try:
            told = await _job(java, [bootstrap, topic, TARGET, name])
        except Failed as error:
            return [Check(name="Spark", passed=False, detail=f"the job failed:\n{error}")]
    sizes = told.micro_batches
    console.print(
        f"Spark {told.spark}: figures of {sum(sizes):,} flights by a batch in {told.batch_s:.1f} s;"
        f" by a stream in {len(sizes)} micro-batches, written to {TARGET!r}, in"
        f" {told.stream_s:.1f} s"
    )
    return [
        _compare("Spark batch", expected, told.totals),
        _compare("Spark stream, read back", expected, await _read_back(bootstrap)),
    ]


async def _job(java: Path, arguments: list[str]) -> _Told:
    environment = {
        **os.environ,
        "JAVA_HOME": str(java),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace.demo.spark_job", *arguments,
        env=environment, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(JOB_S):
            said, words = await process.communicate()
    except TimeoutError:
        raise Failed(f"it was not done after {JOB_S:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise Failed(words.decode(errors="replace")[-3000:])
    return msgspec.json.decode(said.splitlines()[-1], type=_Told)


async def _read_back(bootstrap: str) -> dict[str, tuple[int, int, int]]:
    """The last figures written for each carrier."""
    found: dict[str, tuple[int, int, int]] = {}
    decode = msgspec.json.Decoder(_Written).decode
    async with Consumer(bootstrap, TARGET, offset_reset="earliest") as consumer:
        while True:
            for record in await consumer.fetch(timeout=0.5):
                row = decode(record.value or b"{}")
                carrier = (record.key or b"").decode()
                found[carrier] = (row.flights, row.arrived, row.minutes)
            if not any((await consumer.lag()).values()):
                return found


def _compare(
    name: str, expected: Mapping[bytes, CarrierTotals], found: Mapping[str, tuple[int, int, int]]
) -> Check:
    wanted = {
        carrier.decode(): (total.flights, total.arrived, total.delay_minutes)
        for carrier, total in expected.items()
    }
    wrong = sorted(
        carrier for carrier in wanted.keys() | found.keys()
        if wanted.get(carrier) != found.get(carrier)
    )  # fmt: skip
    detail = f"{len(found)} carriers, the same as in plain Python"
    if wrong:
        detail = f"{len(wrong)} carriers differ from plain Python, {wrong[0]} first"
    return Check(name=name, passed=not wrong, detail=detail)
