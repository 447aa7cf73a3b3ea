"""The pytest fixture `headrace_cluster`, found by pytest through the entry point `headrace`.

Loaded by every pytest run where Headrace is installed, so it imports nothing until it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.sdk.testing import InMemoryCluster


@pytest.fixture
def headrace_cluster() -> Iterator[InMemoryCluster]:
    """An empty in-memory cluster of one broker; `headrace_cluster.url` is its bootstrap address."""
    from headrace.sdk.testing import InMemoryCluster

    cluster = InMemoryCluster()
    yield cluster
    cluster.close()
