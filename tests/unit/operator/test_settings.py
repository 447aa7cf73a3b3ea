"""Settings by environment."""

from __future__ import annotations

import pytest

from headrace.operator.settings import Settings, load
from headrace.protocol.errors import InvalidConfig


def test_nothing_set_is_the_defaults() -> None:
    assert load({}) == Settings()
    assert load({}).namespace_list == ()


def test_settings_are_read_by_their_types() -> None:
    found = load(
        {
            "HEADRACE_OPERATOR_NAMESPACES": "a, b",
            "HEADRACE_OPERATOR_LEADER_ELECTION": "No",
            "HEADRACE_OPERATOR_RESYNC_SECONDS": "7.5",
            "HEADRACE_OPERATOR_CONCURRENCY": "3",
            "HEADRACE_OPERATOR_HEALTH_PORT": "-1",
            "HEADRACE_OTHER": "is somebody else's",
        }
    )
    assert found.namespace_list == ("a", "b")
    assert (found.leader_election, found.resync_seconds, found.concurrency) == (False, 7.5, 3)
    assert found.health_port == -1


def test_what_kubernetes_tells_of_a_service_of_that_name_is_no_setting() -> None:
    told = {
        "HEADRACE_OPERATOR_SERVICE_HOST": "10.0.0.1",
        "HEADRACE_OPERATOR_SERVICE_PORT_HEALTH": "9421",
        "HEADRACE_OPERATOR_PORT": "tcp://10.0.0.1:9421",
        "HEADRACE_OPERATOR_PORT_9421_TCP_ADDR": "10.0.0.1",
        "HEADRACE_OPERATOR_METRICS_PORT": "tcp://10.0.0.1:9421",
    }
    assert load(told) == Settings()


@pytest.mark.parametrize("value", ["zero", "", "0", "-3"])
def test_a_number_that_cannot_be_is_refused_by_name(value: str) -> None:
    with pytest.raises(InvalidConfig, match="HEADRACE_OPERATOR_POLL_SECONDS"):
        load({"HEADRACE_OPERATOR_POLL_SECONDS": value})
