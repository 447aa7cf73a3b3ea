"""What of the records handed out is finished, and where each partition goes on.

A record is finished once the next one is asked for. Records of `async for` are counted by the
handout's own iterator; lists (`fetch`) are finished as a whole at the next call; within `run` the
workers say by themselves what is finished (`is_by_hand`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.protocol.ids import TopicPartition
from headrace.sdk.core.positions import Handout, PartitionState


class Progress:
    """One consumer's handout and the partitions whose records the program has.

    `touched`: partitions of which records were given out that aren't finished yet."""

    def __init__(self) -> None:
        self.handout: Handout | None = None
        self.is_iterating = False
        self.is_by_hand = False
        self.touched: set[PartitionState] = set()
        self.has_unhandled: Callable[[PartitionState], bool] = lambda state: False
        """Within `run`: whether workers have records of a partition that they haven't handled."""

    # --- the handout -----------------------------------------------------------------------------

    def close(self) -> None:
        """The records handed out so far are done with; keeps the position they lead to."""
        handout, self.handout = self.handout, None
        if handout is None or handout.version != handout.state.version:
            return
        state = handout.state
        state.position = handout.position
        if self.is_iterating and not self.is_by_hand:
            state.finished = state.position
        if handout.error is not None:
            state.fail(handout.error)

    def give_back(self) -> None:
        """Takes back what was not handed out, into the buffer it came from."""
        handout, self.handout = self.handout, None
        if handout is None or handout.version != handout.state.version:
            return
        state, position = handout.state, handout.position
        if not handout.is_over or handout.error is not None:
            handout.cut()
            state.put_back(handout.batch._replace(first_offset=position))
        if handout.in_hand is not None and self.is_iterating and not self.is_by_hand:
            state.finished = max(state.finished or 0, handout.in_hand)
        state.position = position
        self.touched.add(state)

    def pause(self, state: PartitionState) -> None:
        """Nothing more of the partition shall be handed out."""
        if self.handout is not None and self.handout.state is state:
            self.give_back()

    def move(self, state: PartitionState, offset: int) -> None:
        """The partition goes on elsewhere, whatever of it was handed out."""
        if self.handout is not None and self.handout.state is state:
            self.cut()
        self.touched.discard(state)
        state.move(offset)

    def cut(self) -> None:
        """Hands out nothing more of what was begun."""
        handout, self.handout = self.handout, None
        if handout is not None:
            handout.cut()

    def _handout_of(self, state: PartitionState) -> Handout | None:
        handout = self.handout
        if handout is not None and handout.state is state and handout.version == state.version:
            return handout
        return None

    # --- positions -------------------------------------------------------------------------------

    def position_of(self, state: PartitionState) -> int | None:
        """The next offset to hand out."""
        handout = self._handout_of(state)
        return state.position if handout is None else handout.position

    def finished_of(self, state: PartitionState) -> int | None:
        """What may be committed by itself: all before the record that the program has in hand."""
        if self.is_iterating and not self.is_by_hand:
            handout = self._handout_of(state)
            if handout is not None and handout.in_hand is not None:
                return max(state.finished or 0, handout.in_hand)
        return state.finished

    def finished(self, states: Iterable[PartitionState]) -> dict[TopicPartition, int]:
        """`finished_of` each partition, where it is known."""
        found = {state.owner: self.finished_of(state) for state in states}
        return {where: offset for where, offset in found.items() if offset is not None}

    def is_done_with(self, state: PartitionState) -> bool:
        """Whether the program has finished all that it got of the partition."""
        if self.is_by_hand:
            return not self.has_unhandled(state)
        return self.finished_of(state) == self.position_of(state)

    # --- finishing -------------------------------------------------------------------------------

    def finish_touched(self) -> None:
        """The program asks for more: what it had is finished."""
        handout = self.handout
        if handout is not None and handout.version == handout.state.version:
            handout.state.position = handout.position
            self.touched.add(handout.state)
        for state in self.touched:
            state.finished = state.position
        self.touched.clear()

    def finish_all(self, states: Iterable[PartitionState]) -> dict[TopicPartition, int]:
        """Declares all that was handed out finished (but leaves that to `run` while it runs)."""
        found: dict[TopicPartition, int] = {}
        for state in states:
            if not self.is_by_hand:
                state.position = state.finished = self.position_of(state)
            if state.finished is not None:
                found[state.owner] = state.finished
        return found

    def skip(self, state: PartitionState, offset: int) -> None:
        """Leaves out what lies before `offset`."""
        state.position = offset
        if not self.is_by_hand:
            state.finished = offset

    def finish_by_hand(self, state: PartitionState, version: int, offset: int) -> None:
        """A worker of `run` has come so far, unless the partition was moved since."""
        if state.version == version:
            state.finished = offset

    def rewind(self, states: Iterable[PartitionState]) -> None:
        """After `run`: what was handed out and not handled comes again."""
        self.give_back()
        for state in states:
            if state.finished is not None and state.position != state.finished:
                state.move(state.finished)
        self.touched.clear()
