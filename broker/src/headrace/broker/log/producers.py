"""Idempotence: what each producer wrote last, so that a retry is answered and not written again.

Pure: a function of the log's batches (replication.md R28, Kafka's KIP-98), so every replica that
read the same batches holds the same state. Per producer id the epoch and the last five batches
(five may be in flight, KAFKA-5494). Expiry goes by the append times in the log, never by a clock.

A producer id the state doesn't know must begin at sequence 0. Kafka takes any sequence there; but
then the second of two batches in flight is taken when the first got lost, and order is broken.
So "unknown and not 0" is refused as OutOfOrderSequence with `details["reason"] ==
"unknown_producer"`: the producer takes a new id and starts at 0. State outlives the records
(delete-records and retention leave it alone), so this happens after `expiry_ms` of silence only.
A log copied from the middle (its start is not 0 and no snapshot came with it) can't know earlier
producers: until `expiry_ms` after its first batch it takes any first sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from headrace.broker.log.journal import frame, read_frames
from headrace.protocol.batch import BatchHeader
from headrace.protocol.errors import Fenced, OutOfOrderSequence

SEQUENCES = 1 << 31
"""Sequence numbers go from 0 to this, exclusive, and start again."""

BATCHES_KEPT = 5
"""Batches of one producer whose retries are recognised."""

EXPIRY_MS = 86_400_000
"""Silence after which a producer is forgotten, by default."""

PRODUCERS_MAX = 10_000
"""Producers remembered in one partition, by default; the longest silent is forgotten first."""


class Written(NamedTuple):
    """One remembered batch."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    append_time_ms: int


class _Producer(msgspec.Struct, array_like=True):
    epoch: int
    seen_ms: int
    batches: list[Written]


class _Snapshot(msgspec.Struct, array_like=True):
    end_offset: int
    partial_from_ms: int | None
    producers: list[tuple[int, _Producer]]


_decoder = msgspec.msgpack.Decoder(_Snapshot)


class ProducerState:
    """Invariant: the dict is ordered by `seen_ms`; BATCHES_KEPT batches a producer at most."""

    def __init__(
        self,
        *,
        complete: bool = True,
        expiry_ms: int = EXPIRY_MS,
        producers_max: int = PRODUCERS_MAX,
    ) -> None:
        self._producers: dict[int, _Producer] = {}
        self._complete = complete
        self._partial_from_ms: int | None = None
        self._expiry_ms = expiry_ms
        self._producers_max = producers_max

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, header: BatchHeader, *, now_ms: int) -> Written | None:
        """None for a batch to append; the earlier one when this is its retry.

        Raises:
            OutOfOrderSequence: there is a gap before it, or the producer isn't known.
            Fenced: a producer with the same id and a later epoch has written.
        """
        if header.producer_id < 0 or header.base_sequence < 0:
            return None
        found = self._producers.get(header.producer_id)
        if found is None or now_ms - found.seen_ms > self._expiry_ms:
            self._check_first(header, now_ms)
            return None
        if header.producer_epoch != found.epoch:
            _check_new_epoch(header, found.epoch)
            return None
        return _check_next(header, found.batches)

    def _check_first(self, header: BatchHeader, now_ms: int) -> None:
        if header.base_sequence != 0 and not self._may_have_missed(now_ms):
            raise OutOfOrderSequence(
                f"producer {header.producer_id} is not known here (new, or silent for too long) but"
                f" starts at sequence {header.base_sequence}; take a new producer id, start at 0",
                details={"reason": "unknown_producer", "expected_sequence": 0},
            )

    def _may_have_missed(self, now_ms: int) -> bool:
        if self._complete:
            return False
        start = self._partial_from_ms
        return start is None or now_ms - start <= self._expiry_ms

    def update(self, header: BatchHeader, base_offset: int, append_time_ms: int) -> None:
        """Takes in an appended batch; to be called for each batch of the log, in order."""
        if not self._complete and self._partial_from_ms is None:
            self._partial_from_ms = append_time_ms
        producer_id = header.producer_id
        if producer_id < 0:
            return
        found = self._producers.pop(producer_id, None)
        if found is None:
            self._make_room(append_time_ms)
            found = _Producer(header.producer_epoch, append_time_ms, [])
        elif found.epoch != header.producer_epoch or _is_restart(header, found.batches):
            found = _Producer(header.producer_epoch, append_time_ms, [])
        found.seen_ms = append_time_ms
        if header.base_sequence >= 0:
            # not the record count: compaction may have taken records out
            last = (header.base_sequence + header.last_offset_delta) % SEQUENCES
            last_offset = base_offset + header.last_offset_delta
            found.batches.append(
                Written(header.base_sequence, last, base_offset, last_offset, append_time_ms)
            )
            if len(found.batches) > BATCHES_KEPT:
                del found.batches[0]
        self._producers[producer_id] = found

    def _make_room(self, now_ms: int) -> None:
        """Forgets what is expired, and the longest silent while there are too many."""
        producers = self._producers
        while producers:
            oldest = next(iter(producers))
            is_expired = now_ms - producers[oldest].seen_ms > self._expiry_ms
            if not is_expired and len(producers) < self._producers_max:
                return
            del producers[oldest]

    def remembered(self, now_ms: int) -> dict[int, int]:
        """Producer id to the base offset of the first batch that is remembered of it: what
        compaction must leave the headers of."""
        return {
            producer_id: each.batches[0].base_offset
            for producer_id, each in self._producers.items()
            if each.batches and now_ms - each.seen_ms <= self._expiry_ms
        }

    def snapshot(self, end_offset: int) -> bytes:
        """The state after all batches below `end_offset`, with a checksum."""
        partial = None if self._complete else self._partial_from_ms
        if not self._complete and partial is None:
            partial = _NO_BATCH_YET
        return frame(
            msgspec.msgpack.encode(_Snapshot(end_offset, partial, list(self._producers.items())))
        )

    @classmethod
    def from_snapshot(
        cls, data: bytes, *, end_offset: int, expiry_ms: int, producers_max: int
    ) -> ProducerState | None:
        """The state that `snapshot` wrote for `end_offset`; None for damaged bytes."""
        frames, _good = read_frames(data)
        try:
            found = _decoder.decode(frames[0]) if frames else None
        except msgspec.DecodeError:
            return None
        if found is None or found.end_offset != end_offset:
            return None
        state = cls(
            complete=found.partial_from_ms is None, expiry_ms=expiry_ms, producers_max=producers_max
        )
        if found.partial_from_ms not in (None, _NO_BATCH_YET):
            state._partial_from_ms = found.partial_from_ms
        state._producers = dict(found.producers)
        return state


_NO_BATCH_YET = -(1 << 62)


def _is_restart(header: BatchHeader, batches: Sequence[Written]) -> bool:
    """Whether sequence 0 is a new beginning (after expiry) and not the wrap of 2^31."""
    starts_over = header.base_sequence == 0 and bool(batches)
    return starts_over and batches[-1].last_sequence != SEQUENCES - 1


def _check_new_epoch(header: BatchHeader, epoch: int) -> None:
    if header.producer_epoch < epoch:
        raise Fenced(
            f"producer {header.producer_id} has epoch {epoch} by now, this batch comes from"
            f" epoch {header.producer_epoch}: another instance has taken over"
        )
    if header.base_sequence != 0:
        raise OutOfOrderSequence(
            f"producer {header.producer_id} starts epoch {header.producer_epoch} at sequence"
            f" {header.base_sequence} instead of 0",
            details={"reason": "gap", "expected_sequence": 0},
        )


def _check_next(header: BatchHeader, batches: Sequence[Written]) -> Written | None:
    """As `ProducerState.check`, for a known producer and epoch."""
    if not batches:
        return None
    expected = (batches[-1].last_sequence + 1) % SEQUENCES
    if header.base_sequence == expected:
        return None
    last = (header.base_sequence + header.record_count - 1) % SEQUENCES
    for written in batches:
        if written.base_sequence == header.base_sequence and written.last_sequence == last:
            return written
    raise OutOfOrderSequence(
        f"producer {header.producer_id} sent sequence {header.base_sequence}, expected {expected}:"
        " an earlier batch is missing, or this one is an older retry than the last five",
        details={"reason": "gap", "expected_sequence": expected},
    )
