"""The demo's data set."""

from __future__ import annotations

import importlib.util

import msgspec
import pytest

from headrace.demo import flights


def test_rows_become_json_with_numbers_and_nulls() -> None:
    found = flights.load_flights(840)
    assert found.keys[0] == b"UA"
    first = msgspec.json.decode(found.values[0])
    assert first["carrier"] == "UA"
    assert first["arr_delay"] == found.arrival_delays[0] == 11
    assert msgspec.json.decode(found.values[838])["dep_time"] is None
    assert found.arrival_delays[838] is None


def test_carriers_have_names() -> None:
    assert flights.load_carrier_names()[b"AA"] == "American Airlines Inc."


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(flights.DatasetMissing, match=r"pip install 'headrace\[demo\]'"):
        flights.load_flights(1)
