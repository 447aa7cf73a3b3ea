"""Batches out of the fetcher's buffers to the program, in fair turns over the partitions.

A batch is decoded whole when its first record is asked for, and its records are handed out from a
list; nothing is done per record but the program's own work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from headrace.protocol.errors import (
    CorruptBatch,
    InvalidRequest,
    TopicNotFound,
    UnsupportedFormat,
)
from headrace.protocol.record import Record
from headrace.sdk.core.positions import Handout, PartitionState, RawBatch, next_to_hand_out
from headrace.sdk.core.progress import Progress
from headrace.sdk.errors import fresh
from headrace.sdk.reading.decoding import Decoder, corrupt, offsets_text
from headrace.sdk.reading.fetcher import Fetcher
from headrace.sdk.settings import OnCorrupt

log = logging.getLogger("headrace.sdk.consumer")

REPEAT_PAUSE_S = 0.1
"""Pause before an error that stopped everything is raised once more: a program that just goes on
after it must not keep the loop from everything else."""


BREATH_TURNS = 10
"""Turns of the loop in one breath: enough for an answer that came to be taken in, and for the next
heartbeat to be sent."""


class Handouts:
    """Hands one consumer's records out; `progress` keeps how far that has come."""

    def __init__(
        self, fetcher: Fetcher, progress: Progress, decoder: Decoder, *, on_corrupt: OnCorrupt
    ) -> None:
        self._fetcher = fetcher
        self._progress = progress
        self._decoder = decoder
        self._on_corrupt = on_corrupt
        self._turn = 0
        self.failure: Exception | None = None
        """What ended the whole consumer; raised to whoever reads."""
        self.notices: list[Exception] = []
        """What the program must hear once, although reading goes on."""
        self.may_be_empty = False
        """Whether it is right that there is no partition to read: a group may give some later."""
        self.topics_may_go = False
        """Whether a topic that is deleted is no error: those of a pattern come and go."""
        self.may_hand_out: Callable[[], bool] = lambda: True
        """Whether the partitions are surely still this consumer's."""

    # --- to the program --------------------------------------------------------------------------

    async def next_iterator(self) -> Iterator[Any]:
        """Waits for records; an iterator over what is left of one batch. Whoever iterates finishes
        a record by asking for the next."""
        progress = self._progress
        if not progress.is_by_hand:
            progress.finish_touched()
        progress.is_iterating = True
        handout = await self._next(None)
        assert handout is not None
        return handout.iterator

    async def breathe(self) -> None:
        """Lets the loop do what waits, heartbeats above all. Afterwards nothing more is handed out
        of partitions that may be another's by now (the program may have kept the loop for long)."""
        for _ in range(BREATH_TURNS):
            await asyncio.sleep(0)
        if not self.may_hand_out():
            self._progress.give_back()

    async def fetch(self, max_records: int, timeout: float | None) -> list[Record]:
        """A list of records; waits for the first only. Finishes what was given out before."""
        progress = self._progress
        progress.is_iterating = False
        progress.finish_touched()
        if timeout is not None and timeout <= 0:
            await asyncio.sleep(0)  # So that polling in a loop lets answers in.
        found: list[Record] = []
        deadline = _deadline(timeout)
        while len(found) < max_records:
            handout = self._ready() if found else await self._next(deadline)
            if handout is None or handout.is_over:
                break
            found += islice(handout.iterator, max_records - len(found))
            progress.touched.add(handout.state)
            handout.state.position = handout.position
        return found

    async def fetch_batches(self, max_bytes: int, timeout: float | None) -> list[RawBatch]:
        """As `fetch`, but batches as they are."""
        progress = self._progress
        progress.is_iterating = False
        progress.finish_touched()
        progress.give_back()
        deadline = _deadline(timeout)
        found: list[RawBatch] = []
        size = 0
        while size < max_bytes:
            state = self._ready_state() if found else await self._next_state(deadline)
            if state is None:
                break
            batch = self._take(state)
            state.position = batch.header.next_offset
            progress.touched.add(state)
            if not batch.header.is_control:
                found.append(batch)
                size += len(batch.data)
        return found

    # --- the next batch --------------------------------------------------------------------------

    async def _next(self, deadline: float | None) -> Handout | None:
        progress = self._progress
        while True:
            if (handout := progress.handout) is not None and not handout.is_over:
                return handout
            progress.close()
            state = await self._next_state(deadline)
            if state is None:
                return None
            self._open(state)

    def _ready(self) -> Handout | None:
        """The next handout without waiting; an error found on the way comes at the next call."""
        progress = self._progress
        while progress.handout is None or progress.handout.is_over:
            progress.close()
            state = self._ready_state()
            if state is None:
                return None
            self._open(state)
        return progress.handout

    async def _next_state(self, deadline: float | None) -> PartitionState | None:
        """A partition with a batch to hand out; None when the time is over.

        Raises:
            HeadraceError: a partition has failed and nobody was told, or none is left to read.
        """
        fetcher = self._fetcher
        while True:
            fetcher.check_open()
            self._raise_news()
            state = self._ready_state()
            if state is not None:
                return state
            if (failure := self._failure_of_all()) is not None:
                await fetcher.wait(REPEAT_PAUSE_S)
                if self._failure_of_all() is failure:
                    raise fresh(failure)
                continue
            left_s = None
            if deadline is not None:
                left_s = deadline - asyncio.get_running_loop().time()
                if left_s <= 0:
                    return None
            fetcher.pump()
            await fetcher.wait(left_s)

    def _ready_state(self) -> PartitionState | None:
        if not self.may_hand_out():
            return None
        return next_to_hand_out(self._fetcher.states.values())

    def _raise_news(self) -> None:
        """Raises what ended the consumer, and once each what the program must hear."""
        if self.failure is not None:
            raise fresh(self.failure) from self.failure.__cause__
        if self.notices:
            raise self.notices.pop(0)
        states = self._fetcher.states.values()
        if not states and not self.may_be_empty:
            raise InvalidRequest("there is nothing to read: name topics, or assign partitions")
        for state in states:
            if state.failure is not None and not state.has_raised:
                state.has_raised = True
                if isinstance(state.failure, TopicNotFound):
                    self._mark_topic(state.owner.topic)
                    if self.topics_may_go:
                        log.warning("%s", state.failure)
                        continue
                raise fresh(state.failure) from state.failure.__cause__

    def _mark_topic(self, topic: str) -> None:
        """One partition says it for all of its topic."""
        for state in self._fetcher.states.values():
            if state.owner.topic == topic and isinstance(state.failure, TopicNotFound):
                state.has_raised = True

    def _failure_of_all(self) -> Exception | None:
        """Why nothing can come any more. A group takes partitions of deleted topics away and may
        give others, so they don't count there."""
        states = self._fetcher.states.values()
        failures = [state.failure for state in states if state.failure is not None]
        if len(failures) < len(states):
            return None
        if self.may_be_empty:
            failures = [each for each in failures if not isinstance(each, TopicNotFound)]
        return failures[0] if failures else None

    def _take(self, state: PartitionState) -> RawBatch:
        self._turn += 1
        state.turn = self._turn
        batch = state.take()
        self._fetcher.pump_soon()
        return batch

    def _open(self, state: PartitionState) -> None:
        batch = self._take(state)
        try:
            records, failure = self._decoder.records(batch)
        except (CorruptBatch, UnsupportedFormat) as error:
            if self._on_corrupt == "skip" and isinstance(error, CorruptBatch):
                log.warning("skipping %s: %s", offsets_text(batch), error)
                self._progress.skip(state, batch.header.next_offset)
            else:
                state.fail(corrupt(batch, error))
            return
        handout = self._progress.handout = Handout(state, batch, records)
        if failure is not None:
            handout.error, handout.after = failure


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else asyncio.get_running_loop().time() + timeout
