"""Structured logs: one line an event, text for people or JSON for collectors, to stderr."""

from __future__ import annotations

import logging
import sys
import time

import msgspec


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, broker, and the trace if any."""

    def __init__(self, broker_id: int) -> None:
        super().__init__()
        self._broker_id = broker_id

    def format(self, record: logging.LogRecord) -> str:
        """The line for one record."""
        event: dict[str, object] = {
            "time": _iso(record.created),
            "level": record.levelname,
            "logger": record.name,
            "broker": self._broker_id,
            "message": record.getMessage(),
        }
        if record.exc_info:
            event["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(event).decode()


class TextFormatter(logging.Formatter):
    """`time level broker logger message`, then the trace if there is one."""

    def __init__(self, broker_id: int) -> None:
        super().__init__()
        self._broker_id = broker_id

    def format(self, record: logging.LogRecord) -> str:
        """The line for one record."""
        name = record.name.removeprefix("headrace.")
        line = (
            f"{_iso(record.created)} {record.levelname:<7} [{self._broker_id}] {name}:"
            f" {record.getMessage()}"
        )
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _iso(seconds: float) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{stamp}.{int(seconds * 1000) % 1000:03d}Z"


def set_up(*, log_format: str, level: str, broker_id: int) -> None:
    """Sends all logs of this process to stderr in the given form."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = JsonFormatter if log_format == "json" else TextFormatter
    handler.setFormatter(formatter(broker_id))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
