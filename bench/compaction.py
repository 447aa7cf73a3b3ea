"""Compaction of one log in its own process, beside a plain copy of the same files.

    python bench/compaction.py [--records 2000000] [--keys 1000000] [--value-bytes 1000]
                               [--batch 100] [--codec none] [--folder DIR] [--json]

The log is written through the broker's log classes, one record after the other with a random key,
so a later record of a key lies anywhere. The copy reads and writes the same segments in pieces of
4 MiB and syncs each, in this process, right before and right after the pass.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import time
from pathlib import Path

from own_broker import data_folder, show

from headrace.broker.core.compaction import CleaningPolicy
from headrace.broker.log.checkpoint import Checkpoint
from headrace.broker.log.compaction_process import CompactionProcess
from headrace.broker.log.compactor import Done
from headrace.broker.log.config import LogConfig
from headrace.broker.log.context import LogContext
from headrace.broker.log.files import Disk, FileCache, Workers
from headrace.broker.log.log import Log
from headrace.broker.log.recovery import StartKind, open_log
from headrace.protocol import batch
from headrace.protocol.compression import CODEC_NAMES
from headrace.protocol.ids import TopicId, TopicIdPartition

PIECE_BYTES = 4 << 20
MEMORY_BYTES = 128 << 20
SEGMENT_BYTES = 256 << 20


def fill(log: Log, options: argparse.Namespace) -> None:
    """Records with random keys; values of random bytes, so that a codec gains nothing."""
    source = random.Random(0)
    pool = [source.randbytes(options.value_bytes) for _ in range(1_000)]
    codec = CODEC_NAMES[options.codec]
    for first in range(0, options.records, options.batch):
        rows = [
            (b"key-%012d" % source.randrange(options.keys), pool[(first + place) % 1_000], 0, None)
            for place in range(min(options.batch, options.records - first))
        ]
        data = batch.encode_records(rows, codec=codec)
        log.append(data, batch.read_header(data), leader_epoch=0, now_ms=0)
    log.roll()
    log.high_watermark = log.end_offset


def copy_s(folder: Path, target: Path) -> float:
    """Seconds for reading, writing and syncing all segments once."""
    began = time.perf_counter()
    for path in sorted(folder.glob("*.log")):
        with path.open("rb") as source, target.open("wb") as copy:
            while piece := source.read(PIECE_BYTES):
                copy.write(piece)
            copy.flush()
            os.fdatasync(copy.fileno())
    took = time.perf_counter() - began
    target.unlink()
    return took


def peak_rss_bytes(pid: int) -> int:
    """The most memory that a running process has held."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


async def measure(folder: Path, options: argparse.Namespace) -> dict[str, float | int]:
    """Writes a log, copies it, compacts it, copies what is left."""
    config = LogConfig(
        segment_bytes=SEGMENT_BYTES, segment_ms=1 << 60, cleaning=CleaningPolicy(compact=True)
    )
    context = LogContext(FileCache(Disk(), Workers()))
    directory = folder / "log"
    directory.mkdir()
    log, _report = open_log(
        TopicIdPartition(TopicId(bytes(16)), 0), str(directory), start=StartKind.NEW,
        checkpoint=Checkpoint(), config=config, context=context,
    )  # fmt: skip
    fill(log, options)
    await log.sync_now()
    before = log.size_bytes
    copies = [copy_s(directory, folder / "copy") / before]
    process = CompactionProcess()
    began = time.perf_counter()
    job = await log.cleaning.job(0, memory_bytes=MEMORY_BYTES, bytes_per_second=0)
    assert job is not None
    done = None
    async for step in process.run(job):
        if isinstance(step, Done):
            done = step
            await log.cleaning.finish(job, step, 0)
        else:
            await log.cleaning.put_in_place(step)
    took = time.perf_counter() - began
    assert done is not None
    assert process.pid is not None
    rss = peak_rss_bytes(process.pid)
    await process.stop()
    copies.append(copy_s(directory, folder / "copy") / log.size_bytes)
    copy_rate = 1 / statistics.median(copies) / 1e6
    return {
        "records": done.records_read,
        "keys in the map": done.keys,
        "records removed": done.records_removed,
        "log before, MB": round(before / 1e6),
        "log after, MB": round(log.size_bytes / 1e6),
        "covered of the log, %": round(100 * done.end_offset / log.end_offset),
        "pass, s": round(took, 2),
        "compaction, MB/s of log": round(before / took / 1e6, 1),
        "plain copy, MB/s": round(copy_rate, 1),
        "compaction / copy": round(before / took / 1e6 / copy_rate, 2),
        "peak RSS of the process, MB": round(rss / 1e6),
    }


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=1_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--codec", choices=sorted(CODEC_NAMES), default="none")
    parser.add_argument("--folder", help="on which disk; default: the system's temporary folder")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with data_folder(options.folder) as folder:
        figures = asyncio.run(measure(folder, options))
    show("compaction", figures, as_json=options.json)


if __name__ == "__main__":
    main()
