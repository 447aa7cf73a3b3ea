"""What a leader knows of one partition's replicas, and what follows from it (pure).

The heart of replication.md: how far the log is committed (R7, R11, R12), who is too far behind to
stay in the ISR (R6), who may join it (R9). It holds the record as the store has it, the ISR of a
compare-and-swap whose outcome isn't known (`pending`), and each follower's last validated fetch.
No clock, no store, no log: times and offsets come in. One object lives for one leader epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.broker.core import transitions
from headrace.broker.core.model import (
    BrokerStatus,
    Generation,
    Leader,
    Member,
    PartitionRecord,
)
from headrace.broker.core.transitions import Progress

UNKNOWN = -1
"""An offset that nothing can be concluded from."""

NEVER_S = float("-inf")


@dataclass(slots=True)
class Follower:
    """A follower's last validated fetch of this leader epoch. `caught_up_s`: when it last had all
    that the leader had then. `confirmed_s`: a time at which it surely still followed this leader;
    `seen_s` isn't one, since a request may have lain unread for long."""

    generation: Generation
    session: int
    offset: int
    seen_s: float
    end_when_seen: int
    caught_up_s: float
    confirmed_s: float = NEVER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLog:
    """The leader's own log at the moment of a decision."""

    high_watermark: int
    end_offset: int


class ReplicaSet:
    """Invariants: `record` has this epoch and this leader; `pending` is empty unless a change of
    the ISR computed from `record` may still be applied."""

    def __init__(
        self, record: PartitionRecord, *, me: Leader, epoch_start: int, now_s: float
    ) -> None:
        """`epoch_start`: where the log ended when the epoch began."""
        self.me = me
        self.epoch_start = epoch_start
        self.began_s = now_s
        self.record = record
        self.pending: tuple[Member, ...] = ()
        self.foreign: frozenset[Member] = frozenset()
        """Members of the ISR that somebody else has added: nobody may (R4, R27)."""
        self.followers: dict[int, Follower] = {}
        self.heard_s = now_s
        """When any follower was last heard of under this epoch."""
        self.waits_for: tuple[Member, ...] = ()
        """The others whose logs bound the high watermark: committed and pending ISR (R7)."""
        self._settle()

    def _settle(self) -> None:
        members = dict.fromkeys((*self.record.isr, *self.pending))
        self.waits_for = tuple(each for each in members if each.broker_id != self.me.broker_id)

    @property
    def has_minimum(self) -> bool:
        """Whether the committed ISR has min.insync.replicas; pending members don't count (R7)."""
        return len(self.record.isr) >= self.record.min_effective

    # --- the record -------------------------------------------------------------------------------

    def take(self, record: PartitionRecord) -> bool:
        """Takes a newer record of this epoch; whether it is one. It also settles what was pending:
        another partition epoch means another revision of the object, so that a change computed from
        the former one was applied before it or never will be (R7b)."""
        if record.partition_epoch <= self.record.partition_epoch:
            return False
        own = {*self.record.isr, *self.pending}
        self.foreign = frozenset(m for m in record.isr if m not in own or m in self.foreign)
        self.record, self.pending = record, ()
        for broker_id in self.followers.keys() - set(record.replicas):
            del self.followers[broker_id]
        self._settle()
        return True

    def propose(self, record: PartitionRecord) -> None:
        """A change to `record` is about to be sent: until its outcome is known its members bound
        the high watermark too (R7)."""
        self.pending = record.isr
        self._settle()

    def withdraw(self) -> None:
        """The change that was pending is known never to be applied."""
        self.pending = ()
        self._settle()

    # --- progress ---------------------------------------------------------------------------------

    def fetched(
        self,
        broker_id: int,
        *,
        generation: Generation,
        session: int,
        offset: int,
        end_offset: int,
        now_s: float,
        confirmed_s: float = NEVER_S,
    ) -> None:
        """A follower's fetch was validated: its log is the leader's up to `offset` (R14).
        `confirmed_s`: when the answer went out that the follower had before it sent this."""
        if broker_id not in self.record.replicas:
            return
        known = self.followers.get(broker_id)
        if known is not None and session < known.session:
            return  # a late word of a former process
        self.heard_s = now_s
        if known is None or (known.generation, known.session) != (generation, session):
            caught_up_s = now_s if offset >= end_offset else self.began_s
            self.followers[broker_id] = Follower(
                generation, session, offset, now_s, end_offset, caught_up_s, confirmed_s
            )
            return
        known.confirmed_s = max(known.confirmed_s, confirmed_s)
        if offset >= end_offset:
            known.caught_up_s = now_s
        elif offset >= known.end_when_seen:
            known.caught_up_s = max(known.caught_up_s, known.seen_s)
        known.offset, known.seen_s, known.end_when_seen = offset, now_s, end_offset

    def still_there(
        self, broker_id: int, *, seen_s: float, end_offset: int, confirmed_s: float = NEVER_S
    ) -> None:
        """The follower was heard of at `seen_s` and has nothing new to say of this partition."""
        known = self.followers.get(broker_id)
        if known is None or seen_s < known.seen_s:
            return
        self.heard_s = max(self.heard_s, seen_s)
        known.seen_s, known.confirmed_s = seen_s, max(known.confirmed_s, confirmed_s)
        if known.offset >= end_offset:
            known.caught_up_s = max(known.caught_up_s, seen_s)

    def committed_end(self, own_end: int) -> int:
        """How far every member of committed and pending ISR has the log, `UNKNOWN` while that can't
        be told or the ISR is below its minimum (R7, R11, R12). `own_end`: how far the leader's own
        log counts (R13)."""
        if not self.has_minimum:
            return UNKNOWN
        end = own_end
        for member in self.waits_for:
            known = self.followers.get(member.broker_id)
            if known is None or known.generation != member.generation:
                return UNKNOWN
            if known.offset < end:
                end = known.offset
        return end

    # --- what should change -----------------------------------------------------------------------

    def next_record(
        self,
        brokers: Mapping[int, BrokerStatus],
        *,
        log: LeaderLog,
        now_s: float,
        lag_s: float,
    ) -> PartitionRecord | None:
        """The record as the leader would have it: without those that lag, or else with those that
        have caught up; None if it is right as it is."""
        leaving = self.leaving(brokers, now_s=now_s, lag_s=lag_s)
        if leaving:
            step = transitions.shrink(self.record, leader=self.me, remove=leaving)
            return step if isinstance(step, PartitionRecord) else None
        return self._expanded(brokers, log, now_s, lag_s)

    def has_changes(
        self,
        brokers: Mapping[int, BrokerStatus],
        *,
        log: LeaderLog,
        now_s: float,
        lag_s: float,
    ) -> bool:
        """Whether `next_record` may have one; a look that makes no records."""
        return bool(
            self.leaving(brokers, now_s=now_s, lag_s=lag_s)
            or self.joining(brokers, log=log, now_s=now_s, lag_s=lag_s)
        )

    def leaving(
        self, brokers: Mapping[int, BrokerStatus], *, now_s: float, lag_s: float
    ) -> set[int]:
        """Whose entries should go: of a generation that the broker itself says is gone (R12), those
        that somebody else added (R4), and of those that lag (R6)."""
        return {
            member.broker_id
            for member in self.record.isr
            if member.broker_id != self.me.broker_id
            and (
                self._is_stale(member)
                or member in self.foreign
                or self._lags(member, brokers, now_s, lag_s)
            )
        }

    def _is_stale(self, member: Member) -> bool:
        known = self.followers.get(member.broker_id)
        return known is not None and known.generation != member.generation

    def _lags(
        self, member: Member, brokers: Mapping[int, BrokerStatus], now_s: float, lag_s: float
    ) -> bool:
        status = brokers.get(member.broker_id)
        # A dead broker is the controller's for one more period: one write for all its partitions.
        patience_s = lag_s if status is not None and status.live else 2 * lag_s
        known = self.followers.get(member.broker_id)
        since_s = max(self.began_s, known.caught_up_s) if known else self.began_s
        return now_s - since_s > patience_s

    def _expanded(
        self,
        brokers: Mapping[int, BrokerStatus],
        log: LeaderLog,
        now_s: float,
        lag_s: float,
    ) -> PartitionRecord | None:
        record = self.record
        for broker_id in self.joining(brokers, log=log, now_s=now_s, lag_s=lag_s):
            known = self.followers[broker_id]
            step = transitions.expand(
                record,
                leader=self.me,
                follower=broker_id,
                progress=Progress(
                    leader_epoch=record.leader_epoch,
                    generation=known.generation,
                    offset=known.offset,
                ),
                status=brokers[broker_id],
                high_watermark=log.high_watermark,
                epoch_start_offset=self.epoch_start,
            )
            if isinstance(step, PartitionRecord):
                record = step
        return record if record is not self.record else None

    def joining(
        self,
        brokers: Mapping[int, BrokerStatus],
        *,
        log: LeaderLog,
        now_s: float,
        lag_s: float,
    ) -> list[int]:
        """Who has caught up and isn't in the ISR. Besides R9 it has had all that the leader had,
        and not long ago: whoever only touches the high watermark in passing would soon leave."""
        return [
            broker_id
            for broker_id, known in self.followers.items()
            if self.record.in_isr(broker_id) is None
            and broker_id in brokers
            and known.offset >= max(log.high_watermark, self.epoch_start)
            and now_s - known.caught_up_s <= lag_s / 2
            and (known.caught_up_s > self.began_s or known.offset >= log.end_offset)
        ]

    def is_silent(self, *, now_s: float, for_s: float) -> bool:
        """Whether no follower was heard of for so long (H4)."""
        return len(self.record.replicas) > 1 and now_s - self.heard_s > for_s
