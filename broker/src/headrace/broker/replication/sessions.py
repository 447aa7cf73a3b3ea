"""The leader's memory of what each follower has listed (see protocol/replication.py).

One session a follower. A partition that was listed is *listed* until it was answered with more than
a moved high watermark; the partition tells its listing of news by itself, so that a waiting request
looks only at partitions where something has happened.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.broker.core.model import Generation
from headrace.broker.core.replica_set import NEVER_S
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.waiters import ReadWaiter
from headrace.protocol.ids import TopicId, TopicIdPartition
from headrace.protocol.replication import ReplicaPart, ReplicaRequest


class StartTold(NamedTuple):
    """Where the leader's log starts, as a follower was told in the answer to a request."""

    offset: int = -1
    leader_epoch: int = -1
    sequence: int = -1


class Listing:
    """One partition as a follower listed it last; a `ReplicaWatcher` of the partition."""

    __slots__ = (
        "is_idle", "is_validated", "part", "partition", "session", "start_told", "where",
    )  # fmt: skip

    def __init__(self, session: FollowerSession, where: TopicIdPartition) -> None:
        self.session = session
        self.where = where
        self.part: ReplicaPart | None = None
        self.partition: Partition | None = None
        self.is_validated = False
        """Whether this listing's log was compared and its offset taken for the follower's progress
        (R14)."""
        self.is_idle = False
        """Whether the follower had all there was when it was last looked at."""
        self.start_told = StartTold()

    def on_appended(self) -> None:
        """See `ReplicaWatcher`."""
        if self.part is not None:
            self.session.ready[self] = None
            self.session.waiter.wake()

    def on_committed(self) -> None:
        """See `ReplicaWatcher`. Not worth an answer of its own: it goes with the next one."""
        if self.part is not None:
            self.session.moved[self] = None

    def on_start_moved(self) -> None:
        """See `ReplicaWatcher`. Somebody waits for it, so the request that waits is answered."""
        self.on_committed()
        self.session.hurried = self.session.sequence + 1
        self.session.waiter.wake()

    def has_start(self, offset: int, leader_epoch: int) -> bool:
        """See `ReplicaWatcher`: it has asked again since it was told."""
        told = self.start_told
        is_of_epoch = told.leader_epoch == leader_epoch
        return is_of_epoch and told.offset >= offset and self.session.sequence > told.sequence

    def answered(self) -> None:
        """The follower has to list the partition again before it gets more."""
        self.part, self.is_validated, self.is_idle = None, False, False
        self.session.ready.pop(self, None)
        self.session.moved.pop(self, None)


class FollowerSession:
    """What one follower process has listed here."""

    def __init__(self, request: ReplicaRequest, now_s: float) -> None:
        self.broker_id = request.broker
        self.session = request.session
        self.generation = Generation(request.disk_gen, request.power_gen)
        self.number = request.fetch_session
        self.sequence = request.sequence
        self.seen_s = now_s
        self.answered_s = self.confirmed_s = NEVER_S
        """When the last answer went out; and the one that the follower had before it sent its last
        request: then it surely still listed here what it hasn't forgotten since. A request itself
        may have lain unread while this process was stopped."""
        self.waiter = ReadWaiter()
        self.ready: dict[Listing, None] = {}
        """To be looked at, in the order in which they became so."""
        self.moved: dict[Listing, None] = {}
        """Of these the high watermark or start has moved since the follower was told."""
        self.listings: dict[TopicIdPartition, Listing] = {}
        self.hurried = -1
        """The request of this sequence is to be answered at once: the follower has asked for it."""
        self.closed = False

    def take(self, request: ReplicaRequest, now_s: float) -> None:
        """Takes in what a request lists and forgets."""
        self.sequence, self.seen_s, self.confirmed_s = request.sequence, now_s, self.answered_s
        for topic_id, index in request.forgotten:
            self._forget(TopicIdPartition(TopicId(topic_id), index))
        for part in request.parts:
            where = TopicIdPartition(TopicId(part.topic_id), part.partition)
            listing = self.listings.get(where)
            if listing is None:
                listing = self.listings[where] = Listing(self, where)
            listing.part, listing.is_validated, listing.is_idle = part, False, False
            self.ready[listing] = None

    def attach(self, listing: Listing, partition: Partition | None) -> None:
        """The partition that tells the listing of news."""
        former = listing.partition
        if former is partition:
            return
        if former is not None and former.watchers.get(self.broker_id) is listing:
            del former.watchers[self.broker_id]
        listing.partition = partition
        if partition is not None:
            partition.watchers[self.broker_id] = listing

    def close(self) -> None:
        """No partition tells it anything any more; a waiting request is answered."""
        for where in list(self.listings):
            self._forget(where)
        self.closed = True
        self.waiter.wake()

    def _forget(self, where: TopicIdPartition) -> None:
        listing = self.listings.pop(where, None)
        if listing is not None:
            listing.answered()
            self.attach(listing, None)
