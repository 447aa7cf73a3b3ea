"""What a local cluster looks like."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.dev_cluster import describe_exit
from headrace.cli.dev_plan import plan_cluster


def test_brokers_take_two_ports_each_and_a_folder_of_their_own() -> None:
    plan = plan_cluster(brokers=3, data_dir=Path("/d"), port=9420)
    assert [(b.port, b.health_port) for b in plan.brokers] == [
        (9420, 9421),
        (9422, 9423),
        (9424, 9425),
    ]
    assert plan.bootstrap == "http://127.0.0.1:9420"
    assert plan.brokers[2].environment["HEADRACE_DATA_DIR"] == "/d/broker-2"
    assert len({b.environment["HEADRACE_STORE"] for b in plan.brokers}) == 1


@pytest.mark.parametrize("port", [0, -1, 65_535])
def test_ports_that_do_not_fit_are_refused(port: int) -> None:
    with pytest.raises(ValueError, match="don't fit"):
        plan_cluster(brokers=1, data_dir=Path("/d"), port=port)


def test_an_exit_is_told_by_its_signal_or_code() -> None:
    assert describe_exit(-9) == "was killed by SIGKILL"
    assert describe_exit(3) == "ended with exit code 3"
