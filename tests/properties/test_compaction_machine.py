"""Compaction against a list of all records ever appended: whatever happens, the log holds a subset
of them at their own offsets, with the latest of each key, and no deleted key comes back."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from typing import NamedTuple, TypeVar

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.broker.core.compaction import CleaningPolicy
from headrace.broker.log.checkpoint import Checkpoint
from headrace.broker.log.config import LogConfig
from headrace.broker.log.lookups import TimeHit
from headrace.broker.log.producers import Written
from headrace.broker.log.recovery import StartKind
from headrace.protocol import batch
from headrace.protocol.compression import Codec
from headrace.protocol.record import Record
from testkit.logs import Bench, Crash, FragileDisk, append, clean, read_records

T = TypeVar("T")

KEYS = [b"", b"a", b"b", b"c", b"a key of fourteen bytes and more", b"another key of that size"]
DELETE_RETENTION_MS = 100
UNCLEAN = st.sampled_from([StartKind.SAME_BOOT, StartKind.OTHER_BOOT])


class Kept(NamedTuple):
    """A record as it was appended."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


class Sent(NamedTuple):
    """A producer's batch."""

    producer: int
    sequence: int
    records: int
    offset: int
    append_ms: int


class CompactionMachine(RuleBasedStateMachine):
    """`records` are all that were appended and not truncated."""

    @initialize(
        segment_bytes=st.sampled_from([300, 900, 4000]),
        interval=st.sampled_from([1, 250, 4096]),
        capacity=st.sampled_from([1, 32]),
    )
    def begin(self, segment_bytes: int, interval: int, capacity: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.directory = tempfile.mkdtemp(prefix="headrace-log-")
        policy = CleaningPolicy(
            compact=True, delete_retention_ms=DELETE_RETENTION_MS, min_dirty_ratio=0.0
        )
        config = LogConfig(
            segment_bytes=segment_bytes, index_interval_bytes=interval, delete=False,
            cleaning=policy,
        )  # fmt: skip
        self.disk = FragileDisk()
        self.bench = Bench(self.directory, config, disk=self.disk, capacity=capacity)
        self.log, _ = self.bench.open()
        self.saved = Checkpoint()
        self.records: list[Kept] = []
        self.sent: list[Sent] = []
        self.cleaned_ms: dict[int, int] = {}
        """Tombstones below the clean offset, and when they came there."""
        self.now_ms = 1000
        self.epoch = 0
        self.committed = 0
        """The high watermark of before a crash: nobody truncates below it, whatever he knows."""

    def run(self, work: Coroutine[object, object, T]) -> T:
        return self.loop.run_until_complete(work)

    @rule(
        rows=st.lists(
            st.tuples(
                st.none() | st.sampled_from(KEYS),
                st.none() | st.sampled_from([b"", b"v" * 20]),
                st.integers(-50, 50),
            ),
            min_size=1, max_size=6,
        ),
        producer=st.none() | st.integers(1, 3),
        codec=st.sampled_from(Codec),
        is_new_epoch=st.integers(0, 9),
    )  # fmt: skip
    def append(
        self,
        rows: list[tuple[bytes | None, bytes | None, int]],
        producer: int | None,
        codec: Codec,
        is_new_epoch: int,
    ) -> None:
        self.now_ms += 1
        self.epoch += is_new_epoch == 0
        sequence = sum(sent.records for sent in self.sent if sent.producer == producer)
        data = batch.encode_records(
            [
                (key, value, stamp, {"h": value} if stamp == 7 else None)
                for key, value, stamp in rows
            ],
            codec=codec,
            producer_id=-1 if producer is None else producer,
            producer_epoch=-1 if producer is None else 0,
            base_sequence=-1 if producer is None else sequence,
        )
        self.run(self.log.load_producers())
        done = append(self.log, data, now_ms=self.now_ms, leader_epoch=self.epoch)
        for place, row in enumerate(rows):
            self.records.append(Kept(done.base_offset + place, *row))
        if producer is not None:
            self.sent.append(
                Sent(producer, sequence, len(rows), done.base_offset, done.append_time_ms)
            )

    def commit(self) -> None:
        self.log.high_watermark = self.committed = self.log.end_offset
        self.run(self.log.sync_now())

    @rule(later_ms=st.sampled_from([0, 60, 150]), keys=st.sampled_from([1, 3, 1000]))
    def compact(self, later_ms: int, keys: int) -> None:
        self.now_ms += later_ms
        self.commit()
        self.log.roll()
        self.commit()
        done = self.run(clean(self.log, now_ms=self.now_ms, memory_bytes=keys * 110))
        if done is not None:
            self.check_cleaned(done.end_offset)

    def check_cleaned(self, end_offset: int) -> None:
        below = [record for record in self.survivors() if record.offset < end_offset]
        keys = [record.key for record in below if record.key is not None]
        assert len(keys) == len(set(keys))
        self.note_tombstones(below)

    def note_tombstones(self, records: list[Record]) -> None:
        for record in records:
            if record.key is not None and record.value is None:
                self.cleaned_ms.setdefault(record.offset, self.now_ms)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @precondition(lambda self: self.log.older_segments())
    @rule(step=st.integers(1, 40), start=UNCLEAN, tombstones=st.booleans())
    def crash_while_compacting(self, step: int, start: StartKind, tombstones: bool) -> None:
        self.commit()
        self.now_ms += 150 * tombstones
        self.disk.changes, self.disk.fails_at = 0, step
        try:
            self.run(clean(self.log, now_ms=self.now_ms))
        except Crash:
            self.disk.fails_at = -1
            self.reopen(start)
        self.disk.fails_at = -1
        self.note_tombstones(self.survivors())

    @precondition(lambda self: self.log.older_segments())
    @rule(step=st.integers(1, 40), tombstones=st.booleans())
    def fail_while_compacting(self, step: int, tombstones: bool) -> None:
        self.commit()
        self.now_ms += 150 * tombstones
        self.disk.changes, self.disk.fails_at, self.disk.error = 0, step, OSError
        try:
            self.run(clean(self.log, now_ms=self.now_ms))
        except OSError:
            pass
        self.disk.fails_at, self.disk.error = -1, Crash
        self.note_tombstones(self.survivors())

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        low = max(self.committed, self.log.start_offset)
        self.log.truncate_to(data.draw(st.integers(low, self.log.end_offset)))
        end = self.log.end_offset
        self.records = [record for record in self.records if record.offset < end]
        self.sent = [sent for sent in self.sent if sent.offset < end]

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.commit()
        self.run(self.log.advance_start(data.draw(st.integers(self.log.start_offset,
                                                              self.log.end_offset))))  # fmt: skip
        self.saved = self.log.checkpoint()

    @rule()
    def checkpoint(self) -> None:
        self.saved = self.log.checkpoint()

    @rule()
    def reopen_clean(self) -> None:
        self.saved = self.run(self.log.close())
        self.log, report = self.bench.open(StartKind.CLEAN, self.saved)
        assert report.scanned_bytes == 0

    @rule(start=UNCLEAN)
    def reopen(self, start: StartKind) -> None:
        self.bench.kill(self.log)
        self.log, report = self.bench.open(start, self.saved)
        assert report.cut_bytes == 0

    @precondition(lambda self: self.sent)
    @rule(producer=st.integers(1, 3), back=st.integers(0, 4))
    def retry(self, producer: int, back: int) -> None:
        state = self.run(self.log.load_producers())
        sent = [each for each in self.sent if each.producer == producer]
        if back >= len(sent):
            return
        found = sent[-1 - back]
        header = batch.read_header(
            batch.encode_records(
                [(None, b"", 0, None)] * found.records,
                producer_id=producer, producer_epoch=0, base_sequence=found.sequence,
            )
        )  # fmt: skip
        last = found.sequence + found.records - 1
        end = found.offset + found.records - 1
        assert state.check(header, now_ms=self.now_ms) == Written(
            found.sequence, last, found.offset, end, found.append_ms
        )

    def survivors(self) -> list[Record]:
        return self.run(read_records(self.log))

    @rule(data=st.data(), stamp=st.integers(-60, 60))
    def read_somewhere(self, data: st.DataObject, stamp: int) -> None:
        start, end = self.log.start_offset, self.log.end_offset
        offset = data.draw(st.integers(start, end))
        whole = self.survivors()
        assert self.run(read_records(self.log, offset)) == [
            record for record in whole if record.offset >= offset
        ]
        expected = next(
            (TimeHit(each.offset, each.timestamp_ms) for each in whole
             if each.timestamp_ms >= stamp), None,
        )  # fmt: skip
        assert self.run(self.log.offset_for_time(stamp, end_offset=end)) == expected

    @invariant()
    def holds_the_latest_of_each_key(self) -> None:
        log = self.log
        assert log.failure is None
        assert log.size_bytes == sum(
            segment.size_bytes for segment in [*log.older_segments(), log.segments.active]
        )
        appended = {record.offset: record for record in self.records}
        found = [
            Kept(record.offset, record.key, record.value, record.timestamp_ms)
            for record in self.survivors()
        ]
        assert all(appended.get(record.offset) == record for record in found)
        offsets = {record.offset for record in found}
        assert [record.offset for record in found] == sorted(offsets)
        latest = {record.key: record for record in self.records}
        for record in self.records:
            if record.offset < log.start_offset or record.offset in offsets:
                continue
            assert record.key is not None
            if latest[record.key] == record:
                assert record.value is None
                since = self.cleaned_ms.get(record.offset, self.now_ms)
                assert self.now_ms - since >= DELETE_RETENTION_MS
        for key in {record.key for record in self.records if record.key is not None}:
            kept = [record for record in found if record.key == key]
            if latest[key].value is None and latest[key].offset >= log.start_offset:
                assert not kept or kept[-1] == latest[key]

    def teardown(self) -> None:
        self.bench.kill(self.log)
        self.loop.close()
        shutil.rmtree(self.directory)


CompactionMachine.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
)
TestCompaction = CompactionMachine.TestCase
