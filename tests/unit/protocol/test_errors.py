"""The table of errors: codes are unique and travel."""

from __future__ import annotations

import re

import msgspec
import pytest

from headrace.protocol import errors
from headrace.protocol.errors import BY_CODE, HeadraceError, from_code
from headrace.protocol.models import ErrorBody


def _all_below(root: type[HeadraceError]) -> list[type[HeadraceError]]:
    found = []
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            found += [child, *_all_below(child)]
    return found


GROUPS = {errors.CallerError, errors.RetriableError, errors.ClientError}
LEAVES = [cls for cls in _all_below(HeadraceError) if cls not in GROUPS]


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [cls.code for cls in LEAVES]
    assert len(set(codes)) == len(codes) == len(BY_CODE)
    assert {cls.code: cls for cls in LEAVES} == BY_CODE


@pytest.mark.parametrize("cls", LEAVES, ids=lambda cls: cls.__name__)
def test_an_error_is_named_for_its_code_and_described(cls: type[HeadraceError]) -> None:
    words = re.findall("[A-Z][a-z]+", cls.__name__)
    assert cls.code in {"_".join(words).lower(), "_".join(words[:-1]).lower()}
    assert cls.__doc__


@pytest.mark.parametrize("cls", LEAVES, ids=lambda cls: cls.__name__)
def test_status_and_retriable_fit_together(cls: type[HeadraceError]) -> None:
    if issubclass(cls, errors.CallerError):
        assert 400 <= cls.status < 500
        assert not cls.retriable
    elif issubclass(cls, errors.RetriableError):
        assert cls.retriable
        assert cls.status in {408, 409, 421, 429, 503, 504, 507}


def test_the_tree_in_the_module_names_every_class() -> None:
    assert errors.__doc__
    named = set(re.findall(r"[A-Z][a-zA-Z]+", errors.__doc__))
    assert {cls.__name__ for cls in LEAVES} <= named


@pytest.mark.parametrize("cls", LEAVES, ids=lambda cls: cls.__name__)
def test_an_error_comes_back_from_its_body(cls: type[HeadraceError]) -> None:
    sent = cls("what to do", retry_after_ms=70, details={"first_offset": 5})
    raw = msgspec.json.encode(ErrorBody.of(sent))
    found = msgspec.json.decode(raw, type=ErrorBody).to_error()
    assert type(found) is cls
    assert (found.message, found.retry_after_ms, found.details) == (
        "what to do", 70, {"first_offset": 5},
    )  # fmt: skip
    assert str(found) == "what to do"


@pytest.mark.parametrize("retriable", [True, False])
def test_a_code_of_a_newer_broker_keeps_its_code_and_whether_to_try_again(retriable: bool) -> None:
    raw = msgspec.json.encode(
        {"code": "moon_phase", "message": "wait", "retriable": retriable, "added_later": 1}
    )
    found = msgspec.json.decode(raw, type=ErrorBody).to_error()
    assert type(found) is HeadraceError
    assert (found.code, found.retriable, found.message) == ("moon_phase", retriable, "wait")
    assert HeadraceError.code == "error"


def test_details_are_never_shared_between_errors() -> None:
    one, two = from_code("throttled", "a"), from_code("throttled", "b")
    one.details["x"] = 1
    assert two.details == {}
