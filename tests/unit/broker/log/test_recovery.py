"""Recovery: whatever prefix of the writes is there, a prefix of the batches comes back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from headrace.broker.log.checkpoint import Checkpoint
from headrace.broker.log.config import LogConfig
from headrace.broker.log.files import Disk
from headrace.broker.log.recovery import StartKind
from headrace.protocol import batch
from testkit.logs import Bench, append, read_bytes, sealed

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=250)
UNCLEAN = [StartKind.SAME_BOOT, StartKind.OTHER_BOOT]


class Written:
    """A log of three segments and where its batches end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "written"
        self.folder.mkdir()
        self.scratch = folder / "scratch"

    async def write(self) -> None:
        bench = Bench(str(self.folder), CONFIG)
        log, _ = bench.open()
        await log.load_producers()
        for number in range(14):
            values = [b"%d" % number] * (number % 3 + 1)
            data = sealed(values, producer_id=7, producer_epoch=0, base_sequence=log.end_offset)
            append(log, data, now_ms=number, leader_epoch=number // 4)
        self.whole = await read_bytes(log, 0, log.end_offset)
        self.numbers = log.checkpoint()
        bench.kill(log)
        self.ends = {0: 0}
        for position, header in batch.walk(self.whole):
            self.ends[header.next_offset] = position + header.length
        self.segments = sorted(self.folder.glob("*.log"))

    def copy(self) -> Path:
        shutil.rmtree(self.scratch, ignore_errors=True)
        shutil.copytree(self.folder, self.scratch)
        return self.scratch / self.segments[-1].name

    def bench(self) -> Bench:
        return Bench(str(self.scratch), CONFIG)

    def start_of(self, path: Path) -> int:
        """Where a segment begins within all bytes."""
        return self.ends[int(path.stem)]


@pytest.fixture
async def written(tmp_path: Path) -> Written:
    found = Written(tmp_path)
    await found.write()
    assert len(found.segments) == 3
    return found


@pytest.mark.parametrize("start", UNCLEAN)
async def test_every_byte_prefix_recovers_to_the_batches_that_are_whole(
    written: Written, start: StartKind
) -> None:
    last = written.segments[-1]
    for size in range(last.stat().st_size, -1, -1):
        path = written.copy()
        with path.open("r+b") as file:
            file.truncate(size)
        bench = written.bench()
        log, report = bench.open(start, Checkpoint())
        there = written.start_of(last) + size
        good = max(end for end in written.ends.values() if end <= there)
        assert log.failure is None
        assert written.ends[log.end_offset] == good
        assert report.cut_bytes == there - good
        assert await read_bytes(log, 0, log.end_offset) == written.whole[:good]
        again, second = bench.open(StartKind.SAME_BOOT, log.checkpoint())
        assert (again.end_offset, second.cut_bytes) == (log.end_offset, 0)
        append(again, sealed([b"more"]), leader_epoch=9)
        assert again.end_offset_for_epoch(8)[1] == log.end_offset
        bench.kill(again)


@pytest.mark.parametrize("start", UNCLEAN)
async def test_a_damaged_byte_is_never_served_and_never_costs_what_was_synced(
    written: Written, start: StartKind
) -> None:
    recovery_point = int(written.segments[1].stem) + 2
    recovery_point = max(offset for offset in written.ends if offset <= recovery_point)
    checkpoint = Checkpoint(recovery_point=recovery_point)
    for path in written.segments:
        for at in range(0, path.stat().st_size, 5):
            copied = written.copy().with_name(path.name)
            data = bytearray(copied.read_bytes())
            data[at] ^= 0x10
            copied.write_bytes(data)
            bench = written.bench()
            log, _report = bench.open(start, checkpoint)
            position = written.start_of(path) + at
            if log.failure is None and log.end_offset < written.numbers.end_offset:
                assert start is StartKind.OTHER_BOOT
                assert position >= written.ends[recovery_point]
                end = written.ends[log.end_offset]
                assert end <= position < end + 200
                assert await read_bytes(log, 0, log.end_offset) == written.whole[:end]
                kept = sorted(written.scratch.glob("*.cut-*"))
                assert sum(cut.stat().st_size for cut in kept) == len(written.whole) - end
            elif log.failure is None:
                assert start is StartKind.SAME_BOOT or position < written.ends[recovery_point]
            bench.kill(log)


async def test_missing_segments_are_noticed(written: Written) -> None:
    checkpoint = Checkpoint(recovery_point=written.numbers.end_offset)
    for start in UNCLEAN:
        for gone in written.segments[1:]:
            written.copy().with_name(gone.name).unlink()
            assert written.bench().open(start, checkpoint)[0].failure is not None
    written.copy()
    for path in written.scratch.glob("*.log"):
        path.unlink()
    assert written.bench().open(StartKind.SAME_BOOT, checkpoint)[0].failure is not None


async def test_a_segment_lost_in_a_power_cut_cuts_the_log_there(written: Written) -> None:
    written.copy().with_name(written.segments[1].name).unlink()
    log, report = written.bench().open(StartKind.OTHER_BOOT, Checkpoint())
    assert log.failure is None
    assert log.end_offset == int(written.segments[1].stem)
    assert report.cut_files == 1
    assert written.bench().open(StartKind.SAME_BOOT, Checkpoint())[0].failure is None


@pytest.mark.parametrize("start", UNCLEAN)
async def test_a_damaged_epochs_file_is_made_again_from_the_headers(
    written: Written, start: StartKind
) -> None:
    right = _epochs(written)
    path = written.copy().with_name("epochs")
    data = path.read_bytes()
    for size in range(0, len(data), 3):
        written.copy()
        path.write_bytes(data[:size])
        log, _ = written.bench().open(start, Checkpoint())
        assert [log.end_offset_for_epoch(epoch) for epoch in range(5)] == right
        assert log.last_epoch == 3


def _epochs(written: Written) -> list[tuple[int, int]]:
    written.copy()
    log, _ = written.bench().open(StartKind.CLEAN, written.numbers)
    return [log.end_offset_for_epoch(epoch) for epoch in range(5)]


@pytest.mark.parametrize("start", UNCLEAN)
async def test_damaged_snapshots_and_indexes_cost_time_only(
    written: Written, start: StartKind
) -> None:
    for suffix in (".producers", ".index", ".timeindex"):
        for keep in (0, 1, 2):
            written.copy()
            for path in written.scratch.glob(f"*{suffix}"):
                data = path.read_bytes()
                path.write_bytes(data[: len(data) * keep // 2] + b"?" * keep)
            log, _ = written.bench().open(start, Checkpoint())
            state = await log.load_producers()
            retry = batch.read_header(
                sealed([b""], producer_id=7, producer_epoch=0, base_sequence=log.end_offset)
            )
            assert state.check(retry, now_ms=20) is None
            assert log.end_offset == written.numbers.end_offset


async def test_the_log_start_and_high_watermark_come_from_the_checkpoint(written: Written) -> None:
    for start in UNCLEAN:
        written.copy()
        numbers = Checkpoint(start_offset=9, high_watermark=15, recovery_point=12)
        log, _ = written.bench().open(start, numbers)
        committed = 15 if start is StartKind.SAME_BOOT else 12
        assert (log.start_offset, log.high_watermark) == (9, committed)
        later = msgspec.structs.replace(numbers, start_offset=1000)
        log, _ = written.bench().open(start, later)
        assert (log.start_offset, log.end_offset, log.size_bytes) == (1000, 1000, 0)


async def test_recovering_reports_what_it_reads(written: Written) -> None:
    written.copy()
    from headrace.broker.log.recovery import OpenReport, recover

    told: list[int] = []
    report = OpenReport()
    recover(
        written.bench().disk, str(written.scratch), start=StartKind.OTHER_BOOT,
        checkpoint=Checkpoint(), interval_bytes=250, report=report, progress=told.append,
    )  # fmt: skip
    assert sum(told) == report.scanned_bytes == len(written.whole)


class SyncNotes(Disk):
    """Notes what was synced, by path."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: set[str] = set()

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.synced.add(os.readlink(f"/proc/self/fd/{fd}"))

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        self.synced.add(path)


@pytest.mark.parametrize("start", UNCLEAN)
async def test_what_counts_as_synced_after_a_recovery_was_synced_by_it_or_by_the_flusher(
    written: Written, start: StartKind
) -> None:
    # "Another boot" is also what an unknown boot id or a second kill looks like: then the bytes
    # that recovery has seen may be in memory only.
    notes = SyncNotes()
    bench = Bench(str(written.folder), CONFIG, disk=notes)
    log, _ = bench.open(start, Checkpoint())
    assert log.flushed_offset == 0
    await log.sync_now()
    assert log.flushed_offset == log.end_offset
    assert notes.synced >= {str(path) for path in [*written.segments, written.folder]}
    bench.kill(log)


def test_a_truncation_undone_by_a_power_cut_isnt_committed(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path))
    log, _ = bench.open()
    append(log, sealed([b"stays"]))
    append(log, sealed([b"was never committed"]))
    [segment] = tmp_path.glob("*.log")
    on_disk = segment.read_bytes()
    log.flushed_offset = 2
    log.truncate_to(1)
    append(log, sealed([b"is committed in its place"]), leader_epoch=1)
    log.high_watermark = 2
    numbers = log.checkpoint()
    bench.kill(log)
    again, _ = Bench(str(tmp_path)).open(StartKind.SAME_BOOT, numbers)
    assert (again.end_offset, again.high_watermark) == (2, 2)
    segment.write_bytes(on_disk)  # neither the cut nor what came after it was synced
    after, _ = Bench(str(tmp_path)).open(StartKind.OTHER_BOOT, numbers)
    assert after.failure is None
    assert (after.end_offset, after.high_watermark) == (2, 1)
