"""What the package promises to export, and that importing it stays light."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headrace.sdk
from headrace.sdk import errors


def test_the_exported_names_are_these() -> None:
    expected = {
        "Admin", "BufferFull", "Closed", "ConnectionFailed", "Consumer", "CorruptBatch",
        "DeliveryTimeout", "Fenced", "HeadraceError", "NotEnoughReplicas", "OffsetOutOfRange",
        "OutOfOrderSequence", "PartitionNotFound", "Producer", "Record", "RecordMetadata",
        "RecordTooLarge", "RequestTimedOut", "Throttled", "TopicExists", "TopicNotFound",
        "TopicPartition",
    }  # fmt: skip
    assert set(headrace.sdk.__all__) == set(dir(headrace.sdk)) == expected
    for name in expected:
        assert getattr(headrace.sdk, name).__name__ == name
    with pytest.raises(AttributeError):
        getattr(headrace.sdk, "Nothing")  # noqa: B009


def test_every_error_of_the_protocol_can_be_imported_from_the_sdk() -> None:
    missing = {cls.__name__ for cls in errors.BY_CODE.values()} - set(errors.__all__)
    assert not missing


def _modules_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30
    )
    return set(done.stdout.split())


def test_the_clients_need_no_heavy_package() -> None:
    code = "from headrace.sdk import *\nimport headrace.sdk.sync, headrace.sdk.testing"
    heavy = {
        "kopf", "kubernetes", "numpy", "prometheus_client", "pyarrow", "pyspark", "pytest", "rich",
        "typer", "uvloop",
    }  # fmt: skip
    assert not _modules_after(code) & heavy


def test_the_pytest_plugin_loads_nothing_before_it_is_used() -> None:
    loaded = _modules_after("import headrace.sdk.pytest_plugin")
    assert not loaded & {"aiohttp", "asyncio", "lz4", "msgspec", "zstandard"}
