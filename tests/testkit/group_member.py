"""A member of a group as a process of its own, for tests that kill it.

    python -m testkit.group_member URL TOPIC GROUP FILE SESSION_S [INSTANCE_ID]

Appends a line to FILE for each thing that happens: `record PARTITION OFFSET`, `assigned P...`,
`revoked P...`, `lost P...`. SIGTERM closes it in order.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.protocol.ids import TopicPartition
from headrace.sdk import Consumer


async def _live(url: str, topic: str, group: str, file: str, session: str, *rest: str) -> None:
    with Path(file).open("a", buffering=1) as out:

        def tell(what: str) -> Callable[[Consumer, Sequence[TopicPartition]], None]:
            def callback(_: Consumer, partitions: Sequence[TopicPartition]) -> None:
                out.write(f"{what} {' '.join(str(each.partition) for each in partitions)}\n")

            return callback

        async with Consumer(
            url, topic, group=group, instance_id=rest[0] if rest else None,
            session_timeout=float(session), rebalance_timeout=10, auto_commit_interval=0.2,
            metadata_max_age=5, offset_retry_timeout=30,
            on_assigned=tell("assigned"), on_revoked=tell("revoked"), on_lost=tell("lost"),
        ) as consumer:  # fmt: skip
            reading = asyncio.ensure_future(_read(consumer, out.write))
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, reading.cancel)
            await asyncio.gather(reading, return_exceptions=True)


async def _read(consumer: Consumer, write: Callable[[str], object]) -> None:
    async for record in consumer:
        write(f"record {record.partition} {record.offset}\n")
        await asyncio.sleep(0.001)


if __name__ == "__main__":
    asyncio.run(_live(*sys.argv[1:]))
