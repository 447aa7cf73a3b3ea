"""How `make test` shares the tests out to processes (pytest-xdist): a file stays together with its
fixtures, all of e2e with its one Kubernetes, Spark with its one session."""

from __future__ import annotations

from typing import Any

import pytest

TOGETHER = ("e2e/", "tests/spark/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """In order of collection, which begins with what takes longest. (`--dist loadgroup` would do,
    but pytest-xdist 3.8 can't mark groups with pytest 9.2.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return next((each for each in TOGETHER if file.startswith(each)), file)

    config.option.loadscopereorder = False
    return Together(config, log)
