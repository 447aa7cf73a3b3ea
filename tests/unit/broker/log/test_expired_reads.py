"""Reading with record.ttl.ms: expired batches aren't handed out, and nobody waits behind them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.log.config import LogConfig
from headrace.broker.log.log import Log
from headrace.broker.log.reader import ColdRead
from headrace.broker.log.slices import LogSlice
from headrace.protocol import batch
from testkit.logs import Bench, OddDisk, append


def put(log: Log, *stamps: int) -> None:
    append(log, batch.encode_records([(None, b"v" * 50, stamp, None) for stamp in stamps]))


async def headers(found: LogSlice | None) -> list[batch.BatchHeader]:
    if found is None:
        return []
    with found:
        data = await found.read()
    assert len(data) == found.length
    whole = list(batch.walk(data))
    for position, header in whole:
        batch.decode_columns(memoryview(data)[position : position + header.length], header)
    return [header for _, header in whole]


async def read_all(log: Log, before_ms: int, max_bytes: int) -> list[int]:
    """Base offsets of the batches with records that a reader gets, from start to end."""
    offset, found = log.start_offset, []
    for _ in range(1000):
        piece = await log.locate_cold(
            offset, max_bytes=max_bytes, end_offset=log.end_offset, expired_before_ms=before_ms
        )
        if piece is None:
            break
        for header in await headers(piece):
            assert header.next_offset > offset
            offset = header.next_offset
            if header.record_count:
                found.append(header.base_offset)
    assert offset == log.end_offset
    return found


@given(
    stamps=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=25),
    before_ms=st.integers(0, 11),
    max_bytes=st.sampled_from([1, 400, 1 << 20]),
    segment_bytes=st.sampled_from([300, 1000, 1 << 20]),
    interval=st.sampled_from([1, 400, 4096]),
    is_cold=st.booleans(),
    reopens=st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_readers_get_the_batches_that_are_not_expired_and_reach_the_end(
    tmp_path_factory: pytest.TempPathFactory,
    stamps: list[list[int]],
    before_ms: int,
    max_bytes: int,
    segment_bytes: int,
    interval: int,
    is_cold: bool,
    reopens: bool,
) -> None:
    async def check() -> None:
        disk = OddDisk()
        disk.is_cold = is_cold
        config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=interval)
        bench = Bench(str(tmp_path_factory.mktemp("log")), config, disk=disk)
        log, _ = bench.open()
        fresh = []
        for each in stamps:
            if max(each) >= before_ms:
                fresh.append(log.end_offset)
            put(log, *each)
        if reopens:
            log, _ = bench.open(checkpoint=log.checkpoint())
        assert await read_all(log, before_ms, max_bytes) == fresh

    asyncio.run(check())


async def test_an_empty_batch_stands_for_what_is_expired(tmp_path: Path) -> None:
    log, _ = Bench(str(tmp_path)).open()
    for stamp in (1, 2, 3):
        put(log, stamp, stamp)
    found = log.locate(1, max_bytes=1, end_offset=6, expired_before_ms=10)
    (header,) = await headers(found)
    assert (header.base_offset, header.next_offset, header.record_count) == (1, 6, 0)
    assert log.locate(6, max_bytes=1, end_offset=6, expired_before_ms=10) is None
    assert log.locate(0, max_bytes=1, end_offset=0, expired_before_ms=10) is None


async def test_what_was_skipped_is_cut_as_other_slices_are(tmp_path: Path) -> None:
    log, _ = Bench(str(tmp_path)).open()
    for _ in range(3):
        put(log, 1, 1)
    last = log.locate(2, max_bytes=1, end_offset=6)
    assert last is not None
    for cut, end in (("cut", 4), ("cut_before", 2)):
        found = log.skip(0, 6)
        getattr(found, cut)(last)
        (header,) = await headers(found)
        assert header.next_offset == found.next_offset == end


async def test_a_cold_index_is_asked_for_and_not_waited_for(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), LogConfig(segment_bytes=300))
    log, _ = bench.open()
    for stamp in range(9):
        put(log, stamp)
    bench.kill(log)
    with pytest.raises(ColdRead):
        log.locate(0, max_bytes=1, end_offset=9, expired_before_ms=8)
    found = await log.locate_cold(0, max_bytes=1, end_offset=9, expired_before_ms=8)
    assert [header.base_offset for header in await headers(found)] == [8]
