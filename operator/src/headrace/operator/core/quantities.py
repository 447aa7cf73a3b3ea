"""Kubernetes quantities ("500m", "20Gi", 1e3) as exact numbers."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

_FORM = re.compile(
    r"^([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:([numkMGTPE]|[KMGTPE]i)?|[eE]([+-]?\d{1,3}))$"
)
_POWERS = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BINARY = "KMGTPE"


def parse(value: str | int) -> Fraction | None:
    """The number, or None if it isn't one."""
    found = _FORM.match(str(value))
    if found is None:
        return None
    digits, suffix, exponent = found.groups()
    number = Fraction(Decimal(digits))
    if exponent is not None:
        power = int(exponent)
        return _scaled(number, power)
    if suffix and suffix.endswith("i"):
        return number * (1 << 10 * (_BINARY.index(suffix[0]) + 1))
    return _scaled(number, 3 * _POWERS[suffix or ""])


def _scaled(number: Fraction, power: int) -> Fraction:
    factor: int = 10 ** abs(power)
    return number * factor if power >= 0 else number / factor


def equal(one: str | int, other: str | int) -> bool:
    """Whether both are the same number, however written."""
    first = parse(one)
    return first is not None and first == parse(other)
