"""What happens to groups by time: sessions and steps that are over, topics that changed, offsets
that nobody came back for."""

from __future__ import annotations

import logging

from headrace.broker.clock import Clock
from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.group_partition import GroupPartition
from headrace.protocol.errors import HeadraceError
from headrace.protocol.ids import TopicIdPartition

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.5
"""How exactly sessions are kept."""

RETENTION_INTERVAL_S = 60.0
"""Pause between two looks for offsets that are over."""


class GroupUpkeep:
    """Looks after the groups of one coordinator."""

    def __init__(
        self, coordinator: GroupCoordinator, clock: Clock, *, offsets_retention_ms: int
    ) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._retention_ms = offsets_retention_ms
        self._retention_at = clock.monotonic() + RETENTION_INTERVAL_S
        self.topics_changed = True
        """Set by whoever sees the cluster's topics change."""

    async def work(self) -> None:
        """One look at all groups."""
        now = self._clock.monotonic()
        has_changed, self.topics_changed = self.topics_changed, False
        is_retention_due = now >= self._retention_at
        for part in self._coordinator.loaded_parts():
            try:
                self._end_sessions(part, now)
                self._end_steps(part, now)
                if has_changed:
                    self._look_at_topics(part)
                if is_retention_due:
                    await self._apply_retention(part)
            except HeadraceError as error:
                self.topics_changed |= has_changed
                log.warning("groups of %s: %s; tried again", part.partition.name, error)
        if is_retention_due:
            self._retention_at = now + RETENTION_INTERVAL_S

    def _end_sessions(self, part: GroupPartition, now: float) -> None:
        over: dict[tuple[str, bool], list[str]] = {}
        presence = part.presence
        for (name, member_id), silent_s in presence.silent(now):
            group = part.groups.get(name)
            subscription = None if group is None else group.members.get(member_id)
            if subscription is None:
                over.setdefault((name, False), []).append(member_id)
            elif silent_s * 1000 > subscription.session_timeout_ms:
                awaited = presence.is_claimed(name, subscription.instance_id, now)
                over.setdefault((name, awaited), []).append(member_id)
        for (name, awaited), member_ids in over.items():
            log.info("group %s: the session of %s is over", name, ", ".join(member_ids))
            self._coordinator.expire(part, name, member_ids, awaited=awaited)
            for member_id in member_ids:
                if awaited:
                    presence.heard[name, member_id] = now
                else:
                    presence.forget((name, member_id))
        presence.drop_claims(now)

    def _end_steps(self, part: GroupPartition, now: float) -> None:
        """Members that are told to do something and don't, although they are alive. They hear that
        they are out, and are removed when they leave or their sessions are over."""
        for key, (epoch, since) in list(part.presence.told.items()):
            name, member_id = key
            group = part.groups.get(name)
            if group is None or member_id not in group.members:
                del part.presence.told[key]
                continue
            is_done = group.confirmed.get(member_id) == epoch
            is_past = group.steps[member_id].epoch != epoch or part.presence.is_evicted(key)
            subscription = group.members[member_id]
            is_over = (now - since) * 1000 > subscription.rebalance_timeout_ms
            if is_done or is_past or not is_over:
                continue
            if subscription.has_left:
                continue  # Nobody is there to confirm; its session counts.
            log.warning(
                "group %s: member %s didn't finish its step within its rebalance timeout and is"
                " removed", name, member_id,
            )  # fmt: skip
            part.presence.evict(key)

    def _look_at_topics(self, part: GroupPartition) -> None:
        for name in list(part.groups):
            self._coordinator.look_at_topics(part, name)

    async def _apply_retention(self, part: GroupPartition) -> None:
        now_ms = self._clock.now_ms()
        for name in list(part.state.groups.keys() | part.groups.keys()):
            group = part.groups.get(name)
            if group is not None and group.members:
                continue
            empty_since_ms = 0 if group is None else group.header.empty_since_ms
            over: list[TopicIdPartition] = [
                where
                for where, value in part.state.of(name).items()
                if now_ms - max(value.commit_time_ms, empty_since_ms) > self._retention_ms
            ]
            if over:
                log.info("group %s: %d offsets are over", name, len(over))
                await self._coordinator.forget_offsets(part, name, over)
            if not part.state.of(name) and now_ms - empty_since_ms > self._retention_ms:
                self._coordinator.drop_group(part, name)
