"""Short calls that tell a dead process from a silent one long before its lease does (H7).

The controller calls every other broker, every other broker calls the controller: so a death costs
a few hundred milliseconds until the elections, also the controller's own. A refused connection is
tried once more at once; what it proves is decided in `core.liveness`. No answer proves nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from headrace.broker.controller.brokers import BrokerStatuses
from headrace.broker.controller.controller import Controller
from headrace.broker.controller.timing import TimeSource
from headrace.broker.controller.view import ClusterView
from headrace.broker.core.model import Registration
from headrace.broker.peers.base import PeerHandler, PeerRefused, Peers
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import ClientError, HeadraceError, InternalError

log = logging.getLogger(__name__)

PING = "ping"
"""Path of the call."""

PING_PERIOD_S = 0.3
"""Between two calls to one broker."""

PINGS_PER_SECOND_MAX = 400
"""The controller of a large cluster calls each broker less often."""

PING_TIMEOUT_S = 2.0
"""One call at a time to a broker, so this bounds how often a silent one is called."""

RETRY_S = 0.1
"""From a refused or broken connection to the reconnect that decides."""

RETRIES_MAX = 2
"""A broken connection, then two refused ones."""


class Pong(msgspec.Struct, frozen=True):
    """Who answers: `session` 0 while it is starting; `controller_id` as it knows."""

    broker_id: int
    session: int
    controller_id: int | None = None


_decoder = msgspec.json.Decoder(Pong)


def answer_pings(pong: Callable[[], Pong]) -> PeerHandler:
    """The handler of `PING`."""

    async def handle(_body: memoryview) -> list[Buffer]:
        return [msgspec.json.encode(pong())]

    return handle


class Prober:
    """Calls brokers; tells `statuses` what came of it and wakes the controller."""

    def __init__(
        self,
        peers: Peers,
        view: ClusterView,
        statuses: BrokerStatuses,
        controller: Controller,
        *,
        own_id: int,
        clock: TimeSource,
    ) -> None:
        self._peers = peers
        self._view = view
        self._statuses = statuses
        self._controller = controller
        self._own_id = own_id
        self._clock = clock
        self._calls: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """For ever; for a task. Its end ends all calls."""
        try:
            while True:
                targets = self._targets()
                for target in targets:
                    self._begin(target)
                await self._clock.sleep(max(PING_PERIOD_S, len(targets) / PINGS_PER_SECOND_MAX))
        finally:
            calls = list(self._calls.values())
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def ping(self, broker_id: int) -> int | None:
        """The session that answers at a broker's address now; None: no answer that counts.

        Raises:
            PeerRefused: nobody listens there.
        """
        try:
            pong = await self._call(broker_id)
        except PeerRefused:
            raise
        except HeadraceError:
            return None
        return pong.session if pong.broker_id == broker_id else None

    async def _call(self, broker_id: int) -> Pong:
        raw = await self._peers.call(broker_id, PING, b"", timeout_s=PING_TIMEOUT_S)
        try:
            return _decoder.decode(raw)
        except msgspec.MsgspecError as error:
            raise InternalError(f"broker {broker_id} answers nonsense to {PING}") from error

    def _targets(self) -> list[int]:
        """A broker that is starting doesn't listen yet; one that has left needn't."""
        if self._controller.is_controller:
            return [b for b, r in self._view.brokers.items() if self._is_expected(b, r)]
        lease = self._controller.lease
        if lease is None or lease.released or lease.broker_id == self._own_id:
            return []
        return [lease.broker_id]

    def _is_expected(self, broker_id: int, registration: Registration) -> bool:
        if broker_id == self._own_id or registration.state == "starting":
            return False
        return not self._statuses.has_left(broker_id)

    def _begin(self, target: int) -> None:
        if target not in self._calls:
            call = asyncio.get_running_loop().create_task(self._probe(target), name="ping")
            self._calls[target] = call
            call.add_done_callback(lambda _: self._calls.pop(target, None))

    async def _probe(self, target: int) -> None:
        for attempt in range(1 + RETRIES_MAX):
            if attempt:
                await self._clock.sleep(RETRY_S)
            changed, settled = await self._look(target)
            if changed:
                log.info("broker %d: %s", target, "it answers" if settled else "nobody listens")
                self._controller.look_again()
            self._overthrow_if_gone()
            if settled:
                return

    async def _look(self, target: int) -> tuple[bool, bool]:
        """One call: whether it changed who is dead, and whether there is nothing to ask again."""
        try:
            pong = await self._call(target)
        except PeerRefused:
            return self._statuses.refused(target), False
        except ClientError:
            return False, False
        except HeadraceError:
            return self._statuses.answered(target, 0), True
        if pong.broker_id != target:
            return False, True
        return self._statuses.answered(target, pong.session), True

    def _overthrow_if_gone(self) -> None:
        """The controller's process has ended: its lock may be taken at once. That is lawful, as the
        lock isn't what safety rests on."""
        lease = self._controller.lease
        if lease is None or lease.released:
            return
        present = self._view.brokers.get(lease.broker_id)
        is_followed = present is not None and present.session > lease.session
        if is_followed or self._statuses.proven_gone(lease.broker_id, lease.session):
            self._controller.overthrow(lease)
