"""Compaction of one log: what stays, and that neither crashes nor readers notice the swap."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.broker.core.compaction import CleaningPolicy
from headrace.broker.log import swap
from headrace.broker.log.checkpoint import Checkpoint
from headrace.broker.log.cleaning import CleaningAborted
from headrace.broker.log.compactor import Group, compact
from headrace.broker.log.config import LogConfig
from headrace.broker.log.log import Log
from headrace.broker.log.recovery import StartKind
from headrace.broker.log.swap import SwapNote
from headrace.protocol import batch
from headrace.protocol.compression import Codec
from testkit.batches import Sealed, pack, seal
from testkit.logs import (
    Bench,
    Crash,
    FragileDisk,
    append,
    clean,
    read_bytes,
    read_records,
)

UNCLEAN = [StartKind.SAME_BOOT, StartKind.OTHER_BOOT]
COMPACT = CleaningPolicy(compact=True, delete_retention_ms=100, min_dirty_ratio=0.0)
CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=150, cleaning=COMPACT)

Pair = tuple[bytes | None, bytes | None]


def put(log: Log, pairs: Sequence[Pair], *, codec: Codec = Codec.NONE, now_ms: int = 0) -> None:
    append(
        log,
        batch.encode_records([(key, value, now_ms, None) for key, value in pairs], codec=codec),
        now_ms=now_ms,
    )


def commit(log: Log) -> None:
    """All but an empty segment is closed, on the disk and committed."""
    log.roll()
    log.high_watermark = log.flushed_offset = log.end_offset
    log.segments.rolled = []


async def pairs(log: Log) -> list[tuple[int, Pair]]:
    return [(each.offset, (each.key, each.value)) for each in await read_records(log)]


def filled(bench: Bench) -> Log:
    """Segments in which five keys have many values and six keys have one."""
    log, _ = bench.open()
    for number in range(24):
        rest = [(b"%d" % ((number + 1) % 5), b"x" * 20)]
        if number % 4 == 0:
            rest = [(b"once%d" % number, b"x" * 20)]
        put(log, [(b"%d" % (number % 5), b"%d" % number), *rest])
    commit(log)
    return log


async def test_the_latest_record_of_each_key_stays_at_its_offset(tmp_path: Path) -> None:
    log = filled(Bench(str(tmp_path), CONFIG))
    end, before = log.end_offset, await pairs(log)
    done = await clean(log)
    assert done is not None
    assert done.end_offset == end
    latest = {pair[0]: (offset, pair) for offset, pair in before}
    assert await pairs(log) == sorted(latest.values())
    assert done.records_removed == 37
    assert log.end_offset == end
    assert await clean(log) is None  # nothing is dirty any more


async def test_a_tombstone_stays_for_its_time_and_then_goes(tmp_path: Path) -> None:
    log, _ = Bench(str(tmp_path), CONFIG).open()
    put(log, [(b"a", b"1"), (b"b", b"1")])
    put(log, [(b"a", None), (None, None)])
    put(log, [(b"c", b"1")])
    commit(log)
    await clean(log, now_ms=1000)
    kept = [(1, (b"b", b"1")), (2, (b"a", None)), (3, (None, None)), (4, (b"c", b"1"))]
    assert await pairs(log) == kept
    assert await clean(log, now_ms=1099) is None
    await clean(log, now_ms=1100)
    assert await pairs(log) == [kept[0], *kept[2:]]
    assert await clean(log, now_ms=9999) is None
    put(log, [(b"d", None), (b"e", None)])
    put(log, [(None, None), (b"e", b"1")])
    put(log, [(b"f", b"1")])
    commit(log)
    await clean(log, now_ms=10_000)
    await clean(log, now_ms=10_100)
    assert (b"d", None) not in [pair for _, pair in await pairs(log)]
    assert await clean(log, now_ms=99_999) is None


async def test_the_time_of_a_tombstone_outlives_the_process(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), CONFIG)
    log, _ = bench.open()
    put(log, [(b"a", None)])
    put(log, [(b"c", b"1")])
    commit(log)
    await clean(log, now_ms=1000)
    log, _ = bench.open(StartKind.CLEAN, await log.close())
    assert await clean(log, now_ms=1050) is None
    await clean(log, now_ms=1100)
    assert await pairs(log) == [(1, (b"c", b"1"))]


async def test_batches_keep_their_codec_times_and_epochs(tmp_path: Path) -> None:
    log, _ = Bench(str(tmp_path), CONFIG).open()
    for codec in Codec:
        append(
            log,
            batch.encode_records(
                [(b"k", b"old", 5, {"h": b"1"}), (codec.name.encode(), b"new" * 9, 7, {"h": None})],
                codec=codec, producer_id=9, producer_epoch=1, base_sequence=2 * codec,
            ),
            now_ms=50 + codec, leader_epoch=codec,
        )  # fmt: skip
    commit(log)
    before = [header for _, header in batch.walk(await read_bytes(log, 0, 6))]
    await clean(log, now_ms=60)
    data = await read_bytes(log, 0, 6)
    kept = [
        "append_time_ms", "leader_epoch", "base_offset", "last_offset_delta", "attributes",
        "producer_id", "producer_epoch", "base_sequence",
    ]  # fmt: skip
    after = list(batch.walk(data))
    assert len(after) == 3
    for (position, header), old in zip(after, before, strict=True):
        batch.check_whole(data[position : position + header.length], header)
        assert [getattr(header, name) for name in kept] == [getattr(old, name) for name in kept]
        assert header.max_timestamp_ms == 7
    assert [header.record_count for _, header in after] == [1, 1, 2]
    first = (await read_records(log))[0]
    assert (first.offset, first.timestamp_ms, first.headers) == (1, 7, {"h": None})


async def test_what_cannot_be_decoded_is_copied_and_may_hide_older_records(tmp_path: Path) -> None:
    log, _ = Bench(str(tmp_path), CONFIG).open()
    rubbish = seal(b"rubbish")
    newer = seal(pack([b"a"], [b"1"], None, None, None), Sealed(attributes=batch.TRANSACTIONAL_BIT))
    put(log, [(b"a", b"1"), (b"x", b"1")])
    append(log, rubbish)
    append(log, newer)
    put(log, [(b"a", None), (b"b", b"1")])
    commit(log)
    await clean(log, now_ms=1000)
    data = await read_bytes(log, 0, log.end_offset)
    found = [data[place + 32 : place + header.length] for place, header in batch.walk(data)]
    assert found[1:3] == [rubbish[32:], newer[32:]]
    await clean(log, now_ms=5000)
    data = await read_bytes(log, 0, log.end_offset)
    last = list(batch.walk(data))[-1]
    assert last[1].record_count == 2  # the tombstone stays behind the transaction's batch
    assert await clean(log, now_ms=99_999) is None


async def test_a_full_map_ends_the_pass_and_the_next_goes_on(tmp_path: Path) -> None:
    log = filled(Bench(str(tmp_path), CONFIG))
    before = await pairs(log)
    passes = 0
    while (done := await clean(log, memory_bytes=110 * 7)) is not None:
        passes += 1
        below = [pair[0] for offset, pair in await pairs(log) if offset < done.end_offset]
        assert len(below) == len(set(below))
        assert done.keys <= 7
    assert passes > 3
    latest = {pair[0]: (offset, pair) for offset, pair in before}
    assert await pairs(log) == sorted(latest.values())


async def test_small_segments_become_one_and_clean_ones_are_not_written(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), CONFIG)
    log = filled(bench)
    assert len(log.older_segments()) > 2
    await clean(log)
    sizes = [segment.size_bytes for segment in log.older_segments()]
    assert all(sum(two) > 300 for two in zip(sizes, sizes[1:], strict=False))
    assert log.size_bytes == sum(sizes)
    names = sorted(path.name for path in tmp_path.glob("*.log"))
    bases = [segment.base_offset for segment in (*log.older_segments(), log.segments.active)]
    assert names == [f"{base:020d}.log" for base in bases]
    put(log, [(b"new", b"1")])
    commit(log)
    await clean(log)  # takes the ends of the former segments out
    put(log, [(b"newer", b"1")])
    commit(log)
    job = await log.cleaning.job(0, memory_bytes=1 << 20, bytes_per_second=0)
    assert job is not None
    groups = [step for step in compact(bench.disk, job) if isinstance(step, Group)]
    assert [group.base_offsets for group in groups] == [(48, 49)]


async def test_only_committed_closed_and_old_enough_segments_are_touched(tmp_path: Path) -> None:
    lagging = LogConfig(
        segment_bytes=200,
        cleaning=CleaningPolicy(compact=True, min_lag_ms=50, min_dirty_ratio=0.0),
    )
    log, _ = Bench(str(tmp_path), lagging).open()
    for number in range(6):
        put(log, [(b"k", b"v" * 30)], now_ms=100 + 10 * number)
    commit(log)
    assert await clean(log, now_ms=149) is None
    log.high_watermark = 3
    done = await clean(log, now_ms=1000)
    assert done is not None
    assert done.end_offset <= 3
    assert [offset for offset, _ in await pairs(log)][-4:] == [2, 3, 4, 5]


async def test_what_waits_too_long_is_compacted_whatever_the_ratio(tmp_path: Path) -> None:
    policy = CleaningPolicy(compact=True, max_lag_ms=500, min_dirty_ratio=1.0)
    log, _ = Bench(str(tmp_path), LogConfig(cleaning=policy)).open()
    for value in (b"1", b"2"):
        put(log, [(b"k", value)], now_ms=100)
    commit(log)
    await clean(log, now_ms=600)
    put(log, [(b"k", b"3")], now_ms=700)
    log.high_watermark = log.flushed_offset = log.end_offset
    assert await clean(log, now_ms=1199) is None
    await log.cleaning.dirt(1200)  # closes the idle segment
    await log.sync_now()
    assert await clean(log, now_ms=1200) is not None
    assert await pairs(log) == [(2, (b"k", b"3"))]


async def steps_of_a_pass(folder: Path) -> int:
    disk = FragileDisk()
    log = filled(Bench(str(folder), CONFIG, disk=disk))
    disk.changes = 0
    await clean(log)
    return disk.changes


async def test_a_crash_at_any_step_leaves_the_same_records(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    steps = await steps_of_a_pass(tmp_path / "whole")
    assert steps > 40
    for step in range(1, steps + 1):
        folder = tmp_path / "log"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        disk = FragileDisk()
        bench = Bench(str(folder), CONFIG, disk=disk)
        log = filled(bench)
        checkpoint = log.checkpoint() if step % 2 else Checkpoint()
        latest = {pair[0]: (offset, pair) for offset, pair in await pairs(log)}
        disk.changes, disk.fails_at = 0, step
        with pytest.raises(Crash):
            await clean(log)
        disk.fails_at = -1
        bench.kill(log)
        log, report = bench.open(UNCLEAN[step % 2], checkpoint)
        assert log.failure is None
        assert report.cut_bytes == 0
        assert log.end_offset == 48
        found = await pairs(log)
        assert set(latest.values()) <= set(found)
        assert not list(folder.glob("cleaned-*"))
        assert not (folder / "swap").exists()
        log.high_watermark = log.flushed_offset = log.end_offset
        await clean(log)
        assert await pairs(log) == sorted(latest.values())


async def test_a_disk_that_refuses_any_step_leaves_the_log_in_service(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    steps = await steps_of_a_pass(tmp_path / "whole")
    for step in range(1, steps + 1):
        folder = tmp_path / "log"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        disk = FragileDisk()
        disk.error = OSError
        bench = Bench(str(folder), CONFIG, disk=disk)
        log = filled(bench)
        latest = {pair[0]: (offset, pair) for offset, pair in await pairs(log)}
        disk.changes, disk.fails_at = 0, step
        try:
            await clean(log)
        except OSError:
            pass
        disk.fails_at = -1
        assert log.failure is None
        assert set(latest.values()) <= set(await pairs(log))
        await clean(log)
        assert await pairs(log) == sorted(latest.values())
        log, _ = bench.open(StartKind.CLEAN, await log.close())
        assert await pairs(log) == sorted(latest.values())


async def test_a_disk_that_refuses_everything_from_a_step_on_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    steps, failed = await steps_of_a_pass(tmp_path / "whole"), 0
    for step in range(1, steps + 1):
        folder = tmp_path / "log"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        disk = FragileDisk()
        disk.error, disk.is_lasting = OSError, True
        bench = Bench(str(folder), CONFIG, disk=disk)
        log = filled(bench)
        latest = {pair[0]: (offset, pair) for offset, pair in await pairs(log)}
        checkpoint = log.checkpoint()
        disk.changes, disk.fails_at = 0, step
        with pytest.raises((OSError, CleaningAborted)):
            await clean(log)
        disk.fails_at = -1
        failed += log.failure is not None
        bench.kill(log)
        log, _ = bench.open(UNCLEAN[step % 2], checkpoint)
        assert log.failure is None
        assert set(latest.values()) <= set(await pairs(log))
    assert 0 < failed < steps / 2


async def test_segments_that_a_machine_crash_brought_back_are_removed(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), CONFIG)
    log = filled(bench)
    old = {path.name: path.read_bytes() for path in tmp_path.glob("*.log")}
    job = await log.cleaning.job(0, memory_bytes=1 << 20, bytes_per_second=0)
    assert job is not None
    steps = compact(bench.disk, job)
    group = next(steps)
    assert isinstance(group, Group)
    assert len(group.base_offsets) > 1
    await log.cleaning.put_in_place(group)
    records = await pairs(log)
    bench.kill(log)
    swap.write_note(bench.disk, str(tmp_path), SwapNote(group.base_offsets[0], group.end_offset))
    for base in group.base_offsets[1:]:
        (tmp_path / f"{base:020d}.log").write_bytes(old[f"{base:020d}.log"])
    log, _ = bench.open(StartKind.OTHER_BOOT, log.checkpoint())
    assert log.failure is None
    assert await pairs(log) == records


async def test_readers_go_on_in_the_old_file_and_new_ones_start_in_the_new(tmp_path: Path) -> None:
    log = filled(Bench(str(tmp_path), CONFIG, capacity=1))
    old = log.locate(0, max_bytes=1 << 20, end_offset=48)
    assert old is not None
    whole = bytes(await old.read())
    for _ in range(3):
        await clean(log)
        put(log, [(b"0", b"again")])
        commit(log)
    assert bytes(await old.read()) == whole
    new = await log.locate_cold(0, max_bytes=1 << 20, end_offset=48)
    assert new is not None
    assert bytes(await new.read()) != whole
    assert len(list(tmp_path.glob("*.deleted"))) == 1
    old.close()
    assert not list(tmp_path.glob("*.deleted"))


async def test_a_log_that_is_cut_meanwhile_ends_the_pass(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), CONFIG)
    log = filled(bench)
    job = await log.cleaning.job(0, memory_bytes=1 << 20, bytes_per_second=0)
    assert job is not None
    steps = compact(bench.disk, job)
    group = next(steps)
    assert isinstance(group, Group)
    await log.advance_start(group.end_offset)
    with pytest.raises(CleaningAborted):
        await log.cleaning.put_in_place(group)
    log.truncate_fully_and_start_at(200)
    with pytest.raises(CleaningAborted):
        await log.cleaning.put_in_place(group)
    await log.cleaning.give_up(job)
    assert log.failure is None
    assert not list(tmp_path.glob("cleaned-*"))


async def test_expired_records_go_and_no_older_one_of_their_key_comes_back(tmp_path: Path) -> None:
    policy = CleaningPolicy(compact=True, min_dirty_ratio=0.0, record_ttl_ms=100)
    log, _ = Bench(str(tmp_path), LogConfig(segment_bytes=300, cleaning=policy)).open()
    rows = [(b"a", 1000), (b"b", 1000), (b"a", 500), (b"c", 950), (b"d", 990), (b"e", 900)]
    for key, stamp in rows:
        append(log, batch.encode_records([(key, b"v", stamp, None), (None, b"", stamp, None)]))
    commit(log)
    await clean(log, now_ms=1060)
    assert [(each.offset, each.key) for each in await read_records(log)] == [
        (1, None), (2, b"b"), (3, None), (8, b"d"), (9, None)
    ]  # fmt: skip


async def test_expiry_without_compaction_cleans_each_segment_once(tmp_path: Path) -> None:
    policy = CleaningPolicy(record_ttl_ms=100)
    log, _ = Bench(str(tmp_path), LogConfig(segment_bytes=300, cleaning=policy)).open()
    for number in range(8):
        rows = [(b"same key", b"v" * 40, 1000 + number + late, None) for late in (0, 500)]
        append(log, batch.encode_records(rows), now_ms=1000 + number)
    commit(log)
    assert await clean(log, now_ms=1100) is None
    done = await clean(log, now_ms=1103)
    assert done is not None
    assert done.records_removed == done.end_offset // 2
    assert await clean(log, now_ms=1103) is None
    await clean(log, now_ms=2000)
    assert len(await read_records(log)) == done.end_offset // 2
    assert await clean(log, now_ms=9000) is None
