"""One member of the demo's group, as a process that can be killed.

    python -m headrace.demo.group_member BOOTSTRAP TOPIC GROUP FILE LIST_RECORDS

What it has handled it writes into FILE, list by list, before it asks for more: int64s, minus the
time (monotonic nanoseconds, the same clock in all processes), then the place of each record.
SIGTERM closes it in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from array import array
from collections.abc import Iterator

from headrace.demo.checks import Place
from headrace.sdk import Consumer

SESSION_S = 3.0
"""A member that is silent for so long is taken to be dead: short, so that the demo is."""

COMMIT_INTERVAL_S = 0.25
WORK_S = 0.05
"""What handling a list takes, besides writing it down."""

_OFFSET_BITS = 48


async def _live(bootstrap: str, topic: str, group: str, file: str, list_records: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    written = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    async with Consumer(
        bootstrap, topic, group=group, session_timeout=SESSION_S,
        auto_commit_interval=COMMIT_INTERVAL_S,
    ) as consumer:  # fmt: skip
        while not stop.is_set():
            found = await consumer.fetch(int(list_records), timeout=0.2)
            if found:
                places = [(each.partition, each.offset) for each in found]
                os.write(written, encode(places, time.monotonic_ns()))
                await asyncio.sleep(WORK_S)
        await consumer.commit()


def encode(places: list[Place], time_ns: int) -> bytes:
    """A list that was handled at a time."""
    return array("q", [-time_ns, *(p << _OFFSET_BITS | at for p, at in places)]).tobytes()


def decode(data: bytes) -> Iterator[tuple[int, Place]]:
    """Each record that was handled, with the time; half a number at the end is none."""
    time_ns = 0
    for number in array("q", data[: len(data) // 8 * 8]):
        if number < 0:
            time_ns = -number
        else:
            yield time_ns, (number >> _OFFSET_BITS, number & (1 << _OFFSET_BITS) - 1)


if __name__ == "__main__":
    asyncio.run(_live(*sys.argv[1:]))
