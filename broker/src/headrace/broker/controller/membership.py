"""This broker's place in the cluster: its registration, its lease, and that nobody took them over.

A start takes the next session by compare-and-swap on the registration (replication.md R21), after
the volume's meta was written with the same numbers, and only once the former session's process is
known to be gone: by the volume itself, or by its lease having stood still. Then the lease is
renewed every two seconds. A store that doesn't answer changes nothing; a higher session read means
that another process has this broker's id, and this one must stop at once.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from headrace.broker.controller import leases
from headrace.broker.controller.leases import Lease, LeaseWatch
from headrace.broker.controller.timing import TimeSource
from headrace.broker.controller.updates import StoreWriter, Write
from headrace.broker.core import encoding
from headrace.broker.core.liveness import RENEW_PERIOD_S
from headrace.broker.core.model import BrokerState, Registration, Unreadable
from headrace.broker.core.standing import (
    LocalMeta,
    LocalState,
    Standing,
    former_process_is_gone,
    next_standing,
    unregistered,
)
from headrace.broker.store import keys
from headrace.broker.store.base import Item
from headrace.protocol.errors import Conflict, HeadraceError, StoreUnavailable

log = logging.getLogger(__name__)

DISK_BEAT_PERIOD_S = 10.0
"""How often the volume's meta is written anew: so exactly an older state of the volume shows."""

VERSIONS_PER_SESSION = 1_000
"""A session's registration begins with so many times its number as version: so it is newer than all
of the sessions before, also for those who remember a registration that the store has lost."""

Prepare = Callable[[LocalMeta], Awaitable[None]]
"""Writes the volume's meta and syncs it; nothing may be registered before it returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this broker is and where it is reached."""

    broker_id: int
    url: str
    rack: str | None = None
    software: str = ""
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    """Of this process alone: two processes with one id know each other apart by it."""


class Membership:
    """One process's registration and lease. `join`, then `keep` as a task, then `leave`."""

    def __init__(
        self,
        writer: StoreWriter,
        identity: Identity,
        *,
        clock: TimeSource,
        on_overtaken: Callable[[str], None],
        note_beat: Callable[[int], Awaitable[None]],
    ) -> None:
        """`note_beat` writes a number into the volume's meta durably (H27)."""
        self._note_beat = note_beat
        self._writer = writer
        self._identity = identity
        self._clock = clock
        self._on_overtaken = on_overtaken
        self._key = keys.broker(identity.broker_id)
        self._lease_key = keys.broker_lease(identity.broker_id)
        self._nonce = identity.nonce
        self._beat = 0
        self._disk_beat = 0
        self._beaten_s = 0.0
        self._registration: Registration | None = None
        self.overtaken = False

    @property
    def registration(self) -> Registration:
        """This process's registration; only after `join`."""
        if self._registration is None:
            raise StoreUnavailable("this broker hasn't registered yet: it is starting")
        return self._registration

    @property
    def session(self) -> int:
        """This process's session; 0 before `join`."""
        return self._registration.session if self._registration else 0

    async def join(
        self, cluster_id: str, local: LocalState, prepare: Prepare, *, store_term: int
    ) -> Standing:
        """Takes a session. What it may still count on is in the answer.

        Raises:
            Conflict: a live process has this broker's id.
        """
        former = _decoded(await self._writer.read(self._key))
        lease = await self._lease()
        told = _told_beat(lease, former)
        if former is not None and not former_process_is_gone(local, former, told_beat=told):
            await self._wait_until_gone(former.session)
            told = _told_beat(await self._lease(), former)
        elif former is None and lease is not None:
            # Somebody removed the registration: what is left says who was here.
            await self._wait_until_gone(lease.session)
        standing = next_standing(local, former, told_beat=told)
        if former is None:
            standing = unregistered(
                standing, local, lease_session=lease.session if lease else 0, nonce=self._nonce
            )
        self._disk_beat = max(local.meta.beat if local.meta else 0, told)
        await prepare(
            LocalMeta(
                cluster_id,
                self._identity.broker_id,
                standing.generation,
                standing.session,
                store_term,
                self._disk_beat,
            )
        )
        taken = self._new_registration(standing, former)
        item = await self._writer.update(self._key, lambda found: _take(found, former, taken))
        if _decoded(item) != taken:
            raise _in_use(self._identity.broker_id)
        self._registration = taken
        await self._renew()
        self._beaten_s = self._clock.monotonic()
        return standing

    async def _lease(self) -> Lease | None:
        """What this broker's lease says now."""
        item = await self._writer.read(self._lease_key)
        return leases.decode(item.value) if item else None

    async def keep(self) -> None:
        """Renews the lease and stays registered, for ever. For a task that is started again soon
        after it failed.

        Raises:
            StoreUnavailable: no answer. Conflict: others kept changing the lease.
        """
        while not self.overtaken:
            await self._beat_on_disk()
            await self._renew()
            await self._stay_registered()
            await self._clock.sleep(RENEW_PERIOD_S)

    async def _stay_registered(self) -> None:
        """Writes the registration again if somebody removed it, or the store went back to an
        earlier session: whoever starts later would take this broker for none of the cluster's, or
        for a process that has ended."""
        if self.overtaken or self._writer.shows(self._key):
            return

        def compute(item: Item | None) -> Write | None:
            present = _decoded(item)
            mine = self._newer(present)
            if mine is None or mine is present:
                return None
            changed = replace(mine, version=mine.version + 1)
            return Write(encoding.encode_registration(changed))

        self._check(_decoded(await self._writer.update(self._key, compute)))
        log.warning(
            "the registration was gone from the store, or an earlier one; it is there again"
        )

    async def _beat_on_disk(self) -> None:
        """The volume first, the lease after it: what the lease tells has been on the disk."""
        now_s = self._clock.monotonic()
        if now_s - self._beaten_s < DISK_BEAT_PERIOD_S:
            return
        self._beaten_s = now_s
        try:
            await self._note_beat(self._disk_beat + 1)
        except HeadraceError as error:
            log.warning("the volume's meta wasn't written: %s", error)
        else:
            self._disk_beat += 1

    async def set_state(self, state: BrokerState) -> None:
        """Says what this broker is doing, for elections and placement."""

        def compute(item: Item | None) -> Write | None:
            present = self._newer(_decoded(item))
            if present is None or present.state == state:
                return None
            changed = replace(present, state=state, version=present.version + 1)
            return Write(encoding.encode_registration(changed))

        item = await self._writer.update(self._key, compute)
        self._check(_decoded(item))

    async def leave(self) -> None:
        """Gives the lease up, so that nobody waits for it to stand still."""
        await self._renew(released=True)

    def saw(self, present: Registration) -> None:
        """Takes notice of a registration that the watch told of: it may be somebody newer's."""
        mine = self._registration
        if mine and present.broker_id == mine.broker_id and present.session > mine.session:
            self._be_overtaken(present.session)

    async def _renew(self, *, released: bool = False) -> None:
        self._beat += 1
        mine = self.registration
        lease = Lease(mine.broker_id, mine.session, self._beat, released, disk_beat=self._disk_beat)

        def compute(item: Item | None) -> Write | None:
            present = leases.decode(item.value) if item else None
            if present is not None and present.session > lease.session:
                self._be_overtaken(present.session)
                return None
            return None if present == lease else Write(lease.encode())

        if not self.overtaken:
            await self._writer.update(self._lease_key, compute)

    async def _wait_until_gone(self, session: int) -> None:
        """Until the former process's lease has stood still for long enough; if it moves, that
        process is alive."""
        watch = LeaseWatch()
        first: bytes | None = None
        while not watch.stood_still(self._lease_key):
            item = await self._writer.read(self._lease_key)
            content = item.value if item else b""
            first = content if first is None else first
            if content != first:
                raise _in_use(self._identity.broker_id)
            watch.saw(self._lease_key, content, now_s=self._clock.monotonic())
            if watch.released(self._lease_key, session):
                return
            await self._clock.sleep(RENEW_PERIOD_S / 2)

    def _new_registration(self, standing: Standing, former: Registration | None) -> Registration:
        return Registration(
            broker_id=self._identity.broker_id,
            session=standing.session,
            generation=standing.generation,
            url=self._identity.url,
            rack=self._identity.rack,
            software=self._identity.software,
            nonce=self._nonce,
            version=max(
                former.version + 1 if former else 0, standing.session * VERSIONS_PER_SESSION
            ),
        )

    def _newer(self, present: Registration | None) -> Registration | None:
        """This process's registration, to be changed: the one in the store, or, where that is gone
        or an earlier session's, the one last written. None: it is somebody else's by now."""
        mine = self.registration
        if present is None or present.session < mine.session:
            return replace(mine, version=max(mine.version, present.version if present else 0))
        return present if present.nonce == self._nonce else None

    def _check(self, present: Registration | None) -> None:
        """Absence proves nothing: the registration may have been removed by hand."""
        if present is None or self._registration is None:
            return
        if present.session < self._registration.session:
            return
        if present.session > self._registration.session or present.nonce != self._nonce:
            self._be_overtaken(present.session)
            raise _in_use(self._identity.broker_id)
        self._registration = present

    def _be_overtaken(self, session: int) -> None:
        if self.overtaken:
            return
        self.overtaken = True
        self._on_overtaken(
            f"another process registered as broker {self._identity.broker_id} with session"
            f" {session} (this one has {self.registration.session}): stopping, as two brokers"
            " can't have one id"
        )


def _take(found: Item | None, former: Registration | None, taken: Registration) -> Write | None:
    """Registers, if the registration still is the one that the session was computed from."""
    present = _decoded(found)
    return Write(encoding.encode_registration(taken)) if present == former else None


def _told_beat(lease: Lease | None, former: Registration | None) -> int:
    """What the former session's lease told of its volume."""
    is_its = lease is not None and former is not None and lease.session == former.session
    return lease.disk_beat if lease is not None and is_its else 0


def _decoded(item: Item | None) -> Registration | None:
    """The registration; one that can't be read stops the start rather than being overwritten."""
    if item is None:
        return None
    registration = encoding.decode_registration(item.value)
    if isinstance(registration, Unreadable):
        raise StoreUnavailable(
            f"the store's object {item.key} can't be read ({registration.reason}): repair it, or"
            " start the version of Headrace that wrote it"
        )
    return registration


def _in_use(broker_id: int) -> Conflict:
    return Conflict(
        f"broker id {broker_id} is in use by a live process: stop that one, or give this one"
        " another id (broker.id)"
    )
