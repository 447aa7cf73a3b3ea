"""Structured logs: one line an event, text for people or JSON for collectors, to stderr."""

from __future__ import annotations

import logging
import sys
import time

import msgspec


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the trace if any."""

    def format(self, record: logging.LogRecord) -> str:
        """The line for one record."""
        event = {
            "time": _iso(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            event["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(event).decode()


class TextFormatter(logging.Formatter):
    """`time level logger message`, then the trace if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The line for one record."""
        name = record.name.removeprefix("headrace.")
        line = f"{_iso(record.created)} {record.levelname:<7} {name}: {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _iso(seconds: float) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{stamp}.{int(seconds * 1000) % 1000:03d}Z"


def set_up(*, log_format: str, level: str) -> None:
    """Sends all logs of this process to stderr in the given form. kopf's are of interest from
    warnings on: all it does here is watch."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # Its warning that it handles no signals in a thread is as meant.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    # Each failed try of each watch; `watches` says that they ended and are begun anew.
    logging.getLogger("kopf._cogs.clients").setLevel(logging.CRITICAL)
    for name in ("kopf", "aiohttp.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
