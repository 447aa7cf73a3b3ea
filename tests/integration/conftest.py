"""One real broker for the tests of a module, and folders of their own for those who break it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testkit.brokers import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A running broker shared by a module's tests; each makes topics of its own."""
    process = BrokerProcess(tmp_path_factory.mktemp("broker")).start()
    yield process
    assert process.stop() == 0, process.log_text[-4000:]


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of the test's own, not yet started."""
    process = BrokerProcess(tmp_path / "own")
    yield process
    process.stop()
