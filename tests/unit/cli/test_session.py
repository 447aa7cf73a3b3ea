"""How a command ends when nobody answers, and where its address comes from."""

from __future__ import annotations

import socket

import pytest
from typer.testing import CliRunner, Result

from headrace.cli import session
from headrace.cli.app import app


def invoke(*args: str, **environment: str) -> Result:
    return CliRunner().invoke(app, list(args), env={"HEADRACE_BOOTSTRAP": None, **environment})


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> str:
    """An address where nobody listens, and no patience with it."""
    monkeypatch.setattr(session, "REACH_TIMEOUT_S", 0.3)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "list"),
        ("group", "list"),
        ("cluster", "describe"),
        ("consume", "orders"),
        ("bench", "produce"),
    ],
)
def test_nobody_at_the_address_is_told_with_what_to_do(
    nobody: str, command: tuple[str, ...]
) -> None:
    done = invoke("--bootstrap", nobody, *command)
    assert done.exit_code == 1
    assert nobody in done.stderr
    assert "(connection_failed)" in done.stderr
    assert "headrace dev" in done.stderr


def test_the_command_s_own_address_goes_before_all_others(nobody: str) -> None:
    elsewhere = "http://127.0.0.1:1"
    args = ("--bootstrap", elsewhere, "topic", "list", "--bootstrap", nobody)
    assert nobody in invoke(*args, HEADRACE_BOOTSTRAP=elsewhere).stderr
    assert nobody in invoke("topic", "list", HEADRACE_BOOTSTRAP=nobody).stderr


def test_an_address_that_is_none_is_told(nobody: str) -> None:
    done = invoke("topic", "list", "--bootstrap", "localhost:9420")
    assert done.exit_code == 1
    assert "http://" in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("topic", "creat", "x"),
        ("topic", "create", "x", "--config", "novalue"),
        ("topic", "alter", "x"),
        ("consume", "x", "--format", "%q"),
        ("consume", "x", "--offset", "1", "--from-beginning"),
        ("consume",),
        ("produce", "x", "--acks", "2"),
        ("dev", "--brokers", "0"),
        ("dev", "--port", "65535"),
    ],
)
def test_wrong_usage_is_code_2(args: tuple[str, ...]) -> None:
    done = invoke(*args)
    assert done.exit_code == 2
    assert done.stderr
