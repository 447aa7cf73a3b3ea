"""Log: appending, reading, rolling, cutting, and what it does when the disk refuses."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from headrace.broker.log.config import LogConfig
from headrace.broker.log.files import Workers
from headrace.broker.log.log import Log
from headrace.broker.log.lookups import TimeHit
from headrace.broker.log.reader import ColdRead
from headrace.broker.log.recovery import StartKind
from headrace.protocol import batch
from headrace.protocol.errors import (
    Conflict,
    CorruptBatch,
    OffsetOutOfRange,
    PartitionOffline,
    StorageFull,
)
from testkit.logs import SMALL, Bench, OddDisk, append, read_bytes, read_records, sealed

EVERYTHING = 1 << 62


def filled(log: Log, count: int = 60, records: int = 3) -> None:
    """`count` batches of `records` records, timestamps 10 ms apart, over many segments."""
    for number in range(count):
        values = [b"%d-%d" % (number, place) for place in range(records)]
        append(log, sealed(values, timestamp_ms=number * 10), now_ms=1000 + number)
    log.high_watermark = log.end_offset


def test_appended_batches_get_dense_offsets_and_times_that_never_go_back(tmp_path: Path) -> None:
    log, _ = Bench(str(tmp_path)).open()
    first = append(log, sealed([b"a", b"b"]), now_ms=500)
    second = append(log, sealed([b"c"]), now_ms=400)
    assert (first.base_offset, first.last_offset, first.append_time_ms) == (0, 1, 500)
    assert (second.base_offset, second.last_offset, second.append_time_ms) == (2, 2, 500)


async def test_reading_from_every_offset_gives_the_batches_from_there(tmp_path: Path) -> None:
    log, _ = Bench(str(tmp_path)).open()
    filled(log)
    whole = await read_bytes(log, 0, log.end_offset)
    for offset in range(log.end_offset):
        found = await read_bytes(log, offset, log.end_offset, max_bytes=200)
        assert whole.endswith(found)
        assert batch.read_header(found).base_offset == offset - offset % 3


async def test_a_slice_never_passes_the_end_offset_nor_max_bytes(tmp_path: Path) -> None:
    log, _ = Bench(str(tmp_path)).open()
    filled(log)
    size = batch.read_header(await read_bytes(log, 0, 3)).length
    for end_offset in range(1, 30):
        for max_bytes in (1, size, 2 * size + 1, 10**6):
            piece = await log.locate_cold(0, max_bytes=max_bytes, end_offset=end_offset)
            if piece is None:
                assert end_offset < 3
                continue
            assert piece.next_offset <= end_offset
            assert piece.length <= max(max_bytes, size + 8)


async def test_a_tail_reader_is_answered_from_memory_after_each_append(tmp_path: Path) -> None:
    log, _ = Bench(str(tmp_path)).open()
    offset = 0
    for _number in range(50):
        assert log.locate(offset, max_bytes=10**6, end_offset=log.end_offset) is None
        append(log, sealed([b"x"]))
        piece = log.locate(offset, max_bytes=10**6, end_offset=log.end_offset)
        assert piece is not None
        offset = piece.next_offset
        piece.close()


def test_offsets_outside_the_log_are_refused_with_both_ends(tmp_path: Path) -> None:
    log, _ = Bench(str(tmp_path)).open()
    filled(log, 3)
    with pytest.raises(OffsetOutOfRange) as error:
        log.locate(10, max_bytes=1, end_offset=EVERYTHING)
    assert error.value.details == {"start_offset": 0, "end_offset": 9}
    assert log.locate(9, max_bytes=1, end_offset=EVERYTHING) is None


async def test_cold_reads_go_to_a_thread_and_never_block_the_loop(tmp_path: Path) -> None:
    disk, workers = OddDisk(), Workers(2)
    bench = Bench(str(tmp_path), disk=disk, workers=workers)
    log, _ = bench.open()
    filled(log)
    checkpoint = await log.close()
    disk.is_cold = True
    log, _ = bench.open(StartKind.CLEAN, checkpoint)
    with pytest.raises(ColdRead):
        log.locate(0, max_bytes=10**6, end_offset=log.end_offset)
    piece = await log.locate_cold(0, max_bytes=10**6, end_offset=log.end_offset)
    assert piece is not None
    assert piece.read_nowait() is None
    assert len([part async for part in piece.pieces(64)]) == -(-piece.length // 64)
    assert len(await read_records(log)) == 180
    piece.close()
    workers.close()


async def test_offset_for_time_is_exact_to_the_record(tmp_path: Path) -> None:
    log, _ = Bench(str(tmp_path)).open()
    filled(log)
    for target, expected in [(-5, (0, 0)), (11, (4, 11)), (13, (6, 20)), (592, (179, 592))]:
        assert await log.offset_for_time(target, end_offset=EVERYTHING) == TimeHit(*expected)
    assert await log.offset_for_time(593, end_offset=EVERYTHING) is None
    assert await log.offset_for_time(592, end_offset=179) is None


async def test_offset_after_bytes_splits_a_log_in_parts_of_about_equal_size(tmp_path: Path) -> None:
    log, _ = Bench(str(tmp_path)).open()
    filled(log)
    part = log.size_bytes // 4
    cuts = [await log.offset_after_bytes(0, part * n, end_offset=log.end_offset) for n in range(5)]
    assert cuts[0] == 0
    sizes = [len(await read_bytes(log, a, b)) for a, b in zip(cuts, cuts[1:], strict=False)]
    assert all(abs(size - part) < 300 for size in sizes)
    assert await log.offset_after_bytes(5, 10**9, end_offset=170) == 170


async def test_truncation_drops_batches_and_gives_their_readers_a_conflict(tmp_path: Path) -> None:
    log, _ = Bench(str(tmp_path)).open()
    filled(log)
    piece = await log.locate_cold(170, max_bytes=10**6, end_offset=log.end_offset)
    assert piece is not None
    log.truncate_to(100)
    assert log.end_offset == 99
    assert log.high_watermark == 99
    append(log, sealed([b"again"]), now_ms=5000)
    assert [record.value for record in await read_records(log, 98)] == [b"32-2", b"again"]
    kept = await log.locate_cold(97, max_bytes=10**6, end_offset=log.end_offset)
    assert kept is not None
    log.truncate_to(98)
    with pytest.raises(Conflict):
        await kept.read()


async def test_deleted_segments_stay_readable_for_readers_in_flight(tmp_path: Path) -> None:
    log, _ = Bench(str(tmp_path), capacity=1).open()
    filled(log)
    pieces = [
        await log.locate_cold(offset, max_bytes=10**6, end_offset=log.end_offset)
        for offset in (0, 40, 80)
    ]
    await log.advance_start(150)
    assert log.start_offset == 150
    with pytest.raises(OffsetOutOfRange):
        await log.locate_cold(149, max_bytes=1, end_offset=EVERYTHING)
    for piece in pieces:
        assert piece is not None
        assert len(await piece.read()) == piece.length
    assert len(list(tmp_path.glob("*.deleted"))) == 3
    for piece in pieces:
        assert piece is not None
        piece.close()
    assert not list(tmp_path.glob("*.deleted"))


async def test_deleting_all_records_frees_all_space(tmp_path: Path) -> None:
    log, _ = Bench(str(tmp_path)).open()
    filled(log)
    with pytest.raises(OffsetOutOfRange):
        await log.advance_start(181)
    await log.advance_start(180)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (180, 180, 0)
    append(log, sealed([b"x"]), now_ms=9999)
    assert [record.offset for record in await read_records(log)] == [180]


async def test_retention_by_time_empties_an_idle_log(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), LogConfig(segment_bytes=1500, retention_ms=10_000))
    log, _ = bench.open()
    filled(log)
    checkpoint = await log.close()
    log, _ = bench.open(StartKind.CLEAN, checkpoint)
    assert await log.apply_retention(11_000) == 0
    assert await log.apply_retention(11_030) > 0
    assert 0 < log.start_offset < 180
    log.high_watermark = 100
    await log.apply_retention(99_999)
    assert log.start_offset <= 100
    log.high_watermark = 180
    await log.apply_retention(99_999)
    assert (log.start_offset, log.size_bytes) == (180, 0)


async def test_retention_by_size_is_exact_to_a_segment(tmp_path: Path) -> None:
    log, _ = Bench(str(tmp_path), LogConfig(segment_bytes=1500, retention_bytes=4000)).open()
    filled(log)
    await log.apply_retention(2000)
    assert 4000 <= log.size_bytes < 4000 + 1500
    assert sum(path.stat().st_size for path in tmp_path.glob("*.log")) == log.size_bytes


async def test_epochs_say_where_each_leader_ended(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path))
    log, _ = bench.open()
    for epoch, count in ((1, 2), (3, 1), (7, 2)):
        for _number in range(count):
            append(log, sealed([b"x"]), leader_epoch=epoch)
    checkpoint = await log.close()
    for start in (StartKind.CLEAN, StartKind.SAME_BOOT):
        log, _ = bench.open(start, checkpoint)
        found = [log.end_offset_for_epoch(epoch) for epoch in (0, 1, 2, 3, 6, 7, 9)]
        assert found == [(-1, 0), (1, 2), (1, 2), (3, 3), (3, 3), (7, 5), (7, 5)]
    log.truncate_to(3)
    assert log.last_epoch == 3
    assert log.end_offset_for_epoch(9) == (3, 3)
    with pytest.raises(PartitionOffline):
        append(log, sealed([b"x"]), leader_epoch=2)


async def test_a_follower_appends_the_same_bytes_and_refuses_others(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    leader, _ = Bench(str(tmp_path / "a")).open()
    follower, _ = Bench(str(tmp_path / "b")).open()
    filled(leader)
    whole = await read_bytes(leader, 0, leader.end_offset)
    size = batch.read_header(whole).length
    follower.append_replicated(whole[:size])
    for wrong in (whole[:size], whole[2 * size :], whole[size : 2 * size - 1], b"", b"x" * 200):
        with pytest.raises(CorruptBatch):
            follower.append_replicated(wrong)
    flipped = bytearray(whole[size:])
    flipped[40] ^= 1
    with pytest.raises(CorruptBatch):
        follower.append_replicated(flipped)
    follower.append_replicated(whole[size:])
    assert await read_bytes(follower, 0, 180) == whole
    assert follower.end_offset == 180
    assert follower.last_append_time_ms == leader.last_append_time_ms


async def test_starting_over_at_an_offset_leaves_an_empty_log_there(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path))
    log, _ = bench.open()
    filled(log)
    log.truncate_fully_and_start_at(500)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (500, 500, 0)
    append(log, sealed([b"x"], producer_id=4, producer_epoch=0, base_sequence=9), leader_epoch=2)
    log, _ = bench.open(StartKind.CLEAN, await log.close())
    assert [record.offset for record in await read_records(log)] == [500]


@pytest.mark.parametrize("fault", ["error", "short"])
async def test_a_full_disk_refuses_the_batch_and_leaves_the_log_as_it_was(
    tmp_path: Path, fault: str
) -> None:
    disk = OddDisk()
    log, _ = Bench(str(tmp_path), disk=disk).open()
    filled(log, 2)
    size = log.size_bytes
    disk.write_error = errno.ENOSPC if fault == "error" else None
    disk.write_bytes_max = 50 if fault == "short" else None
    with pytest.raises(StorageFull):
        append(log, sealed([b"x"]), leader_epoch=4)
    disk.write_error = disk.write_bytes_max = None
    assert (log.size_bytes, log.end_offset, log.last_epoch) == (size, 6, 0)
    assert sum(path.stat().st_size for path in tmp_path.glob("*.log")) == size
    append(log, sealed([b"x"]), leader_epoch=4)
    assert len(await read_records(log)) == 7
    assert log.end_offset_for_epoch(3) == (0, 6)


async def test_an_io_error_takes_the_log_offline_and_the_next_start_knows(tmp_path: Path) -> None:
    disk = OddDisk()
    bench = Bench(str(tmp_path), disk=disk)
    log, _ = bench.open()
    filled(log, 2)
    disk.write_error = errno.EIO
    with pytest.raises(PartitionOffline):
        append(log, sealed([b"x"]))
    disk.write_error = None
    with pytest.raises(PartitionOffline):
        append(log, sealed([b"x"]))
    with pytest.raises(PartitionOffline):
        log.locate(0, max_bytes=1, end_offset=1)
    for start in (StartKind.SAME_BOOT, StartKind.OTHER_BOOT):
        assert bench.open(start, log.checkpoint())[0].failure is not None
    assert bench.open(StartKind.CLEAN, log.checkpoint())[0].failure is not None


async def test_a_segment_is_rolled_when_its_first_batch_is_old(tmp_path: Path) -> None:
    log, _ = Bench(str(tmp_path), LogConfig(segment_ms=100)).open()
    for now_ms in (0, 50, 100, 150, 201):
        append(log, sealed([b"x"]), now_ms=now_ms)
    assert len(list(tmp_path.glob("*.log"))) == 3


async def test_deleted_and_damaged_indexes_give_the_same_answers(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path))
    log, _ = bench.open()
    filled(log)
    whole = await read_bytes(log, 0, 180)
    checkpoint = await log.close()
    for damage in range(12):
        for path in [*tmp_path.glob("*.index"), *tmp_path.glob("*.timeindex")]:
            data = bytearray(path.read_bytes())
            if damage == 0:
                path.unlink()
            elif data and damage < 8:
                data[damage * 7 % len(data)] ^= 0x41
                path.write_bytes(data)
            else:
                path.write_bytes(data[: len(data) * (damage - 8) // 4])
        bench = Bench(str(tmp_path))
        log, _ = bench.open(StartKind.CLEAN, checkpoint)
        for offset in range(0, 180, 7):
            assert whole.endswith(await read_bytes(log, offset, 180))
        assert await log.offset_for_time(211, end_offset=180) == TimeHit(64, 211)
        assert log.failure is None
        bench.kill(log)


async def test_appending_after_a_clean_start_reads_nothing_and_joins_the_index(
    tmp_path: Path,
) -> None:
    bench = Bench(str(tmp_path), LogConfig(index_interval_bytes=250))
    log, _ = bench.open()
    filled(log, 20)
    for round_number in range(3):
        checkpoint = await log.close()
        log, report = bench.open(StartKind.CLEAN, checkpoint)
        assert report.scanned_bytes == 0
        filled(log, 20)
        if round_number == 1:
            assert len(await read_records(log, 10)) == log.end_offset - 10
    assert len(await read_records(log)) == 240
    assert await log.offset_for_time(0, end_offset=240) == TimeHit(0, 0)


def test_small_config_is_small() -> None:
    assert SMALL.segment_bytes < 2000


async def test_nothing_is_appended_behind_what_a_closed_log_says_of_itself(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path))
    log, _ = bench.open()
    append(log, sealed([b"kept"]))
    numbers = await log.close()
    with pytest.raises(PartitionOffline, match="closed"):
        append(log, sealed([b"late"]))
    again, _ = bench.open(start=StartKind.CLEAN, checkpoint=numbers)
    assert again.failure is None
    assert again.end_offset == 1
