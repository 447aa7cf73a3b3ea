"""The API server answers no, late, twice or not at all."""

from __future__ import annotations

import pytest

from apiserver.faults import Fault
from kubelet.emulator import Emulator
from suite import install
from suite.cluster import Cluster
from suite.waiting import until

USER = f"system:serviceaccount:{install.NAMESPACE}:{install.OPERATOR}"

REFUSALS = {
    "conflict": Fault(verb="[cpu]*", user=USER, code=409),
    "expired": Fault(verb="[lw]*", user=USER, code=410),
    "throttled": Fault(user=USER, code=429, retry_after_s=1),
    "broken": Fault(user=USER, code=500),
    "broken but done": Fault(verb="[cpud]*", user=USER, code=500, applied=True),
    "unavailable": Fault(user=USER, code=503),
    "cut": Fault(user=USER, action="drop"),
    "cut but done": Fault(verb="[cpud]*", user=USER, action="drop", applied=True),
    "late": Fault(user=USER, action="pass", delay_s=1.0),
}


QUICK = "cut but done"
"""The refusal that tells most, for every run."""


@pytest.mark.parametrize(
    "refusal",
    [each if each == QUICK else pytest.param(each, marks=pytest.mark.soak) for each in REFUSALS],
)
def test_a_cluster_comes_up_while_the_api_server_refuses(
    cluster: Cluster, emulator: Emulator, refusal: str
) -> None:
    fault = REFUSALS[refusal]
    # Two of three at first, then calm: a storm that ends.
    for skip in range(0, 30, 3):
        emulator.api.faults.add(
            Fault(
                verb=fault.verb, user=fault.user, action=fault.action, code=fault.code,
                retry_after_s=fault.retry_after_s, applied=fault.applied, delay_s=fault.delay_s,
                skip=skip, times=2,
            )
        )  # fmt: skip
    cluster.create(replicas=1)
    cluster.until_ready(timeout_s=240)
    assert emulator.api.faults.active[0].met > 2


@pytest.mark.soak
@pytest.mark.parametrize("what", ["drop", "expire", "silence"])
def test_a_change_is_seen_though_the_watches_are_broken(
    cluster: Cluster, emulator: Emulator, what: str
) -> None:
    cluster.create(replicas=1)
    cluster.until_ready()
    mine = [each for each in emulator.api.watches.open if each.user == USER]
    assert mine
    for stream in mine:
        if what == "drop":
            stream.drop()
        elif what == "expire":
            stream.is_expired = True
            stream.bell.set()
        else:
            stream.is_silent = True
    cluster.change({"config": {"retention.ms": 3_600_000}})
    until(
        "the setting is in force",
        lambda: cluster.ask("GET", "/v1/cluster/config") is not None and cluster.is_ready(),
        timeout_s=300,
    )


@pytest.mark.soak
def test_an_api_server_that_is_away_for_a_while_stops_no_clients(
    cluster: Cluster, emulator: Emulator
) -> None:
    cluster.create(replicas=3)
    cluster.topic("orders", partitions=3, replicas=3)
    cluster.until_ready()
    cluster.until_ready("Topic", "orders")
    clients = cluster.load("orders", partitions=3)
    away = emulator.api.faults.add(
        Fault(user="system:serviceaccount:*", action="drop", times=1_000_000)
    )
    for stream in emulator.api.watches.open:
        if stream.user.startswith("system:serviceaccount:"):
            stream.drop()
    clients.go_on(500)
    until("many calls failed", lambda: away.met > 20)
    emulator.api.faults.clear()
    clients.go_on()
    clients.stop()
    cluster.topic("later", partitions=1)
    cluster.until_ready("Topic", "later")
