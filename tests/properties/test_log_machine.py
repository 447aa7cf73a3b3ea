"""The log against a list: whatever is done to it, it holds the batches that the list holds."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from typing import NamedTuple, TypeVar

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from headrace.broker.log.checkpoint import Checkpoint
from headrace.broker.log.config import LogConfig
from headrace.broker.log.lookups import TimeHit
from headrace.broker.log.producers import Written
from headrace.broker.log.recovery import StartKind
from headrace.protocol import batch
from headrace.protocol.errors import OutOfOrderSequence
from testkit.logs import Bench, append, read_bytes, sealed

T = TypeVar("T")


class Kept(NamedTuple):
    """A batch that the log must hold."""

    base_offset: int
    records: int
    stamps: list[int]
    append_ms: int
    producer: tuple[int, int, int] | None
    epoch: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.records


class LogMachine(RuleBasedStateMachine):
    """Batches in `self.kept`; those that retention took are dropped from it by the log's start."""

    @initialize(
        segment_bytes=st.sampled_from([400, 1500, 1 << 20]),
        interval=st.sampled_from([1, 250, 4096]),
        capacity=st.sampled_from([1, 32]),
    )
    def begin(self, segment_bytes: int, interval: int, capacity: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.directory = tempfile.mkdtemp(prefix="headrace-log-")
        config = LogConfig(
            segment_bytes=segment_bytes, index_interval_bytes=interval, retention_ms=500
        )
        self.bench = Bench(self.directory, config, capacity=capacity)
        self.log, _ = self.bench.open()
        self.saved = Checkpoint()
        self.kept: list[Kept] = []
        self.all: list[Kept] = []
        """Every batch since the log began, truncated ones aside: what producer state is made of."""
        self.end = 0
        self.now_ms = 1000
        self.epoch = 0

    def run(self, work: Coroutine[object, object, T]) -> T:
        return self.loop.run_until_complete(work)

    @rule(
        stamps=st.lists(st.integers(-50, 50), min_size=1, max_size=4),
        size=st.sampled_from([0, 10, 300]),
        later_ms=st.integers(-5, 50),
        producer=st.none() | st.integers(1, 3),
        is_new_epoch=st.booleans(),
    )
    def append(
        self, stamps: list[int], size: int, later_ms: int, producer: int | None, is_new_epoch: bool
    ) -> None:
        self.now_ms += max(later_ms, 0)
        self.epoch += is_new_epoch and size == 10
        identity = None
        if producer is not None:
            self.run(self.log.load_producers())
            identity = (producer, 0, self.next_sequence(producer))
        rows = [(None, b"v" * size, stamp, None) for stamp in stamps]
        data = batch.encode_records(rows) if identity is None else batch.encode_records(
            rows, producer_id=identity[0], producer_epoch=0, base_sequence=identity[2]
        )  # fmt: skip
        if identity is not None:
            assert self.log.producers is not None
            assert self.log.producers.check(batch.read_header(data), now_ms=self.now_ms) is None
        done = append(
            self.log, data, now_ms=self.now_ms + min(later_ms, 0), leader_epoch=self.epoch
        )
        last_ms = self.all[-1].append_ms if self.all else 0
        assert done.base_offset == self.end
        assert done.append_time_ms >= last_ms
        kept = Kept(self.end, len(stamps), stamps, done.append_time_ms, identity, self.epoch)
        self.kept.append(kept)
        self.all.append(kept)
        self.end = kept.next_offset

    def next_sequence(self, producer: int) -> int:
        written = [kept for kept in self.all if kept.producer and kept.producer[0] == producer]
        return sum(kept.records for kept in written)

    @rule(producer=st.integers(1, 3), back=st.integers(0, 9))
    def retry(self, producer: int, back: int) -> None:
        """A retry of one of the last five is known; an older one and a gap are refused."""
        state = self.run(self.log.load_producers())
        written = [kept for kept in self.all if kept.producer and kept.producer[0] == producer]
        if back >= len(written):
            return
        found = written[-1 - back]
        assert found.producer is not None
        header = batch.read_header(
            sealed(
                [b""] * found.records,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=found.producer[2],
            )
        )
        try:
            answer = state.check(header, now_ms=self.now_ms)
        except OutOfOrderSequence:
            assert back >= 5
            return
        assert back < 5
        first, last = found.producer[2], found.producer[2] + found.records - 1
        end = found.next_offset - 1
        assert answer == Written(first, last, found.base_offset, end, found.append_ms)

    @precondition(lambda self: self.kept)
    @rule(data=st.data(), max_bytes=st.sampled_from([1, 300, 10**6]))
    def read(self, data: st.DataObject, max_bytes: int) -> None:
        offset = data.draw(st.integers(self.log.start_offset, self.end))
        end = data.draw(st.integers(offset, self.end))
        found = self.run(read_bytes(self.log, offset, end, max_bytes))
        expected = [
            kept for kept in self.kept if kept.next_offset > offset and kept.next_offset <= end
        ]
        headers = [header for _position, header in batch.walk(found)]
        assert [(h.base_offset, h.record_count, h.append_time_ms) for h in headers] == [
            (kept.base_offset, kept.records, kept.append_ms) for kept in expected
        ]

    @rule(stamp=st.integers(-60, 60))
    def look_for_time(self, stamp: int) -> None:
        start = self.log.start_offset
        expected = next(
            (
                TimeHit(kept.base_offset + place, own)
                for kept in self.kept
                for place, own in enumerate(kept.stamps)
                if own >= stamp and kept.base_offset + place >= start
            ),
            None,
        )
        assert self.run(self.log.offset_for_time(stamp, end_offset=self.end)) == expected

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log.start_offset, self.end))
        cuts_the_start = any(
            kept.base_offset < self.log.start_offset < kept.next_offset
            and kept.next_offset > offset
            for kept in self.kept
        )  # then the log begins anew at `offset`, and nothing is known of producers
        self.log.truncate_to(offset)
        self.kept = [kept for kept in self.kept if kept.next_offset <= offset]
        whole = [kept for kept in self.all if kept.next_offset <= offset]
        self.all = [] if cuts_the_start else whole
        left = self.kept[-1].next_offset if self.kept else self.log.end_offset
        assert self.log.end_offset == left <= offset
        self.end = left

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.log.high_watermark = self.end
        offset = data.draw(st.integers(self.log.start_offset, self.end))
        self.run(self.log.advance_start(offset))
        self.checkpoint()
        self.forget_old()

    @rule(later_ms=st.sampled_from([0, 200, 600]))
    def retain(self, later_ms: int) -> None:
        self.log.high_watermark = self.end
        self.now_ms += later_ms
        self.run(self.log.apply_retention(self.now_ms))
        old = [kept for kept in self.kept if kept.next_offset <= self.log.start_offset]
        assert all(self.now_ms - kept.append_ms > 500 for kept in old if kept in old[-1:])
        self.forget_old()

    def forget_old(self) -> None:
        start = self.log.start_offset
        self.kept = [kept for kept in self.kept if kept.next_offset > start]

    @rule()
    def sync(self) -> None:
        if self.log.needs_sync:
            self.run(self.log.sync_now())
        assert self.log.flushed_offset == self.end

    @rule()
    def checkpoint(self) -> None:
        self.saved = self.log.checkpoint()

    @rule()
    def reopen_clean(self) -> None:
        self.saved = self.run(self.log.close())
        self.log, report = self.bench.open(StartKind.CLEAN, self.saved)
        assert report.scanned_bytes == 0

    @rule(start=st.sampled_from([StartKind.SAME_BOOT, StartKind.OTHER_BOOT]))
    def reopen_killed(self, start: StartKind) -> None:
        self.bench.kill(self.log)
        self.log, report = self.bench.open(start, self.saved)
        assert report.cut_bytes == 0
        self.forget_old()

    @invariant()
    def holds_what_the_list_holds(self) -> None:
        log = self.log
        assert log.failure is None
        assert log.end_offset == self.end
        assert log.start_offset <= self.end
        whole = self.run(read_bytes(log, log.start_offset, self.end))
        found = [header.base_offset for _position, header in batch.walk(whole)]
        assert found == [kept.base_offset for kept in self.kept]
        assert log.flushed_offset <= log.end_offset
        if self.kept:
            assert log.last_epoch == self.kept[-1].epoch
            for epoch in range(self.epoch + 1):
                below = [kept for kept in self.kept if kept.epoch <= epoch]
                if below:
                    assert log.end_offset_for_epoch(epoch)[1] == below[-1].next_offset

    def teardown(self) -> None:
        self.bench.kill(self.log)
        self.loop.close()
        shutil.rmtree(self.directory)


LogMachine.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
)
TestLog = LogMachine.TestCase
