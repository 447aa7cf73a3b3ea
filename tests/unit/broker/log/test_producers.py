"""Producer state: retries are recognised, gaps and old epochs refused, silence forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.broker.log.checkpoint import Checkpoint
from headrace.broker.log.producers import SEQUENCES, ProducerState, Written
from headrace.broker.log.recovery import StartKind
from headrace.protocol import batch
from headrace.protocol.batch import BatchHeader
from headrace.protocol.errors import Fenced, OutOfOrderSequence
from testkit.logs import Bench, append, sealed


def header(sequence: int, *, producer: int = 1, epoch: int = 0, records: int = 2) -> BatchHeader:
    data = sealed(
        [b""] * records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence
    )
    return batch.read_header(data)


def write(state: ProducerState, found: BatchHeader, offset: int, now_ms: int = 0) -> None:
    assert state.check(found, now_ms=now_ms) is None
    state.update(found, offset, now_ms)


def test_the_last_five_batches_are_recognised_and_older_ones_refused() -> None:
    state = ProducerState()
    for number in range(8):
        write(state, header(number * 2), number * 2)
    for number in range(3, 8):
        found = state.check(header(number * 2), now_ms=0)
        assert found == Written(number * 2, number * 2 + 1, number * 2, number * 2 + 1, 0)
    with pytest.raises(OutOfOrderSequence):
        state.check(header(4), now_ms=0)
    with pytest.raises(OutOfOrderSequence):
        state.check(header(14, records=1), now_ms=0)


def test_a_gap_is_refused_with_the_sequence_that_is_expected() -> None:
    state = ProducerState()
    write(state, header(0), 0)
    with pytest.raises(OutOfOrderSequence) as error:
        state.check(header(4), now_ms=0)
    assert error.value.details == {"reason": "gap", "expected_sequence": 2}


def test_an_unknown_producer_must_start_at_zero() -> None:
    state = ProducerState()
    with pytest.raises(OutOfOrderSequence) as error:
        state.check(header(6), now_ms=0)
    assert error.value.details["reason"] == "unknown_producer"


def test_sequences_wrap_at_two_to_the_thirty_one() -> None:
    state = ProducerState(complete=False)
    write(state, header(SEQUENCES - 2, records=3), 0)
    write(state, header(1), 3)
    assert state.check(header(SEQUENCES - 2, records=3), now_ms=0) is not None
    state = ProducerState(complete=False)
    write(state, header(SEQUENCES - 2), 0)
    write(state, header(0), 2)
    assert state.check(header(SEQUENCES - 2), now_ms=0) is not None


def test_a_newer_epoch_takes_over_and_fences_the_older() -> None:
    state = ProducerState()
    write(state, header(0), 0)
    with pytest.raises(OutOfOrderSequence):
        state.check(header(2, epoch=1), now_ms=0)
    write(state, header(0, epoch=1), 2)
    with pytest.raises(Fenced):
        state.check(header(2), now_ms=0)


def test_silent_producers_are_forgotten_and_may_start_over() -> None:
    state = ProducerState(expiry_ms=100)
    write(state, header(0), 0, now_ms=0)
    write(state, header(2), 2, now_ms=50)
    assert state.check(header(2), now_ms=150) is not None
    with pytest.raises(OutOfOrderSequence):
        state.check(header(4), now_ms=151)
    write(state, header(0), 4, now_ms=151)
    assert state.check(header(0), now_ms=151) == Written(0, 1, 4, 5, 151)
    with pytest.raises(OutOfOrderSequence):
        state.check(header(4), now_ms=151)


def test_the_number_of_producers_is_bounded_and_the_longest_silent_goes() -> None:
    state = ProducerState(producers_max=3)
    for producer in (1, 2, 3):
        write(state, header(0, producer=producer), producer)
    write(state, header(2, producer=1), 10)
    write(state, header(0, producer=4), 12)
    assert len(state) == 3
    write(state, header(4, producer=1), 14)
    with pytest.raises(OutOfOrderSequence):
        state.check(header(2, producer=2), now_ms=0)


def test_a_snapshot_gives_the_same_state_and_damage_is_noticed() -> None:
    state = ProducerState()
    write(state, header(0), 0)
    write(state, header(0, producer=9, epoch=4), 2)
    data = state.snapshot(4)

    def restored(raw: bytes, end_offset: int = 4) -> ProducerState | None:
        return ProducerState.from_snapshot(
            raw, end_offset=end_offset, expiry_ms=1000, producers_max=10
        )

    same = restored(data)
    assert same is not None
    assert same.snapshot(4) == data
    assert restored(data, 5) is None
    for at in range(len(data)):
        assert restored(data[:at]) is None
        assert restored(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None


def test_a_log_copied_from_the_middle_takes_any_first_sequence_for_a_while() -> None:
    state = ProducerState(complete=False, expiry_ms=100)
    write(state, header(40), 0, now_ms=1000)
    write(state, header(70, producer=2), 2, now_ms=1100)
    with pytest.raises(OutOfOrderSequence):
        state.check(header(70, producer=3), now_ms=1101)
    again = ProducerState.from_snapshot(
        state.snapshot(4), end_offset=4, expiry_ms=100, producers_max=10
    )
    assert again is not None
    assert again.check(header(70, producer=3), now_ms=1100) is None


async def test_state_survives_deletion_of_the_records_it_came_from(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path))
    log, _ = bench.open()
    for number in range(20):
        data = sealed([b"x" * 50] * 2, producer_id=5, producer_epoch=0, base_sequence=number * 2)
        append(log, data)
    log.high_watermark = log.end_offset
    await log.advance_start(40)
    saved = log.checkpoint()
    bench.kill(log)
    for start in (StartKind.SAME_BOOT, StartKind.OTHER_BOOT):
        log, _ = bench.open(start, saved)
        state = await log.load_producers()
        assert state.check(header(40, producer=5), now_ms=0) is None
        assert state.check(header(38, producer=5), now_ms=0) is not None
        bench.kill(log)


async def test_loading_takes_in_what_is_appended_meanwhile(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path))
    log, _ = bench.open()
    await log.load_producers()
    append(log, sealed([b"x"] * 2, producer_id=5, producer_epoch=0, base_sequence=0))
    saved = await log.close()
    log, _ = bench.open(StartKind.CLEAN, saved)
    assert log.producers is None
    append(log, sealed([b"x"] * 2, producer_id=5, producer_epoch=0, base_sequence=2))
    state = await log.load_producers()
    assert state.check(header(4, producer=5), now_ms=0) is None
    again, _ = bench.open(StartKind.SAME_BOOT, Checkpoint())
    assert (await again.load_producers()).check(header(4, producer=5), now_ms=0) is None
