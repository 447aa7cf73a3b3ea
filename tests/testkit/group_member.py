"""Members of a group as processes of their own, for tests that kill them.

    python -m testkit.group_member

reads a line `[count, url, topic, group, file, session_s, instance_id or null]` in JSON for each
process that is wanted, forks it (a new interpreter would spend its first second on imports) and
answers with its pid. Such a process is `count` members, which append a line to the file for each
thing that happens: `record PARTITION OFFSET`, `assigned P...`, `revoked P...`, `lost P...`. SIGTERM
closes them in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.protocol.ids import TopicPartition
from headrace.sdk import Consumer


async def _live(
    count: int, url: str, topic: str, group: str, file: str, session_s: float, instance: str | None
) -> None:
    with Path(file).open("a", buffering=1) as out:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        members = [_member(url, topic, group, session_s, instance, out.write) for _ in range(count)]
        await asyncio.gather(*[_read(each, out.write, stop) for each in members])


def _member(
    url: str, topic: str, group: str, session_s: float, instance: str | None,
    write: Callable[[str], object],
) -> Consumer:  # fmt: skip
    def tell(what: str) -> Callable[[Consumer, Sequence[TopicPartition]], None]:
        def callback(_: Consumer, partitions: Sequence[TopicPartition]) -> None:
            write(f"{what} {' '.join(str(each.partition) for each in partitions)}\n")

        return callback

    return Consumer(
        url, topic, group=group, instance_id=instance, session_timeout=session_s,
        rebalance_timeout=20, auto_commit_interval=0.2, metadata_max_age=5, offset_retry_timeout=30,
        on_assigned=tell("assigned"), on_revoked=tell("revoked"), on_lost=tell("lost"),
    )  # fmt: skip


async def _read(consumer: Consumer, write: Callable[[str], object], stop: asyncio.Event) -> None:
    async with consumer:
        while not stop.is_set():
            for record in await consumer.fetch(1, timeout=0.2):
                write(f"record {record.partition} {record.offset}\n")
                await asyncio.sleep(0.001)
        await consumer.commit()


def _fork(line: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        asyncio.run(_live(*json.loads(line)))
    except BaseException:
        traceback.print_exc()
    os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for them.
    for line in sys.stdin:
        print(_fork(line), flush=True)
