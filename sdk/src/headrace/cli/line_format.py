r"""Lines in, lines out: what a line of `produce` means and how `consume` shows a record. Pure.

Letters of a format: %k key, %v value, %o offset, %p partition, %t topic, %T timestamp (ms since
1970), %h headers (name=value, comma between), %% a percent sign. Escapes: \n \t \r \\ and \xHH.
Keys and values pass through as the bytes they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from headrace.protocol.models import Text, bytes_to_text
from headrace.protocol.record import Record

_ESCAPE = re.compile(r"\\(n|t|r|\\|x[0-9a-fA-F]{2}|.?)", re.DOTALL)
_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}

LETTERS_HELP = (
    "%k key, %v value, %o offset, %p partition, %t topic, %T timestamp in ms, %h headers, %% a "
    "percent sign; \\n \\t \\r \\\\ \\xHH are escapes. 'json' prints one JSON object a line."
)
"""What `consume --help` says."""


class FormatFault(ValueError):
    """A format or separator that can't be read; the message says where."""


class LineFault(ValueError):
    """A line that can't be a record; the message says why."""


class JsonLine(msgspec.Struct):
    """A record as `consume --format json` prints it: the JSON API's fields, and where it lay."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Text
    value: Text
    headers: dict[str, Text]


Field = Callable[[Record], bytes]
Render = Callable[[Iterable[Record]], bytes]


def unescape(text: str) -> bytes:
    r"""The bytes that a text with escapes stands for; `\xHH` is a byte, all else UTF-8.

    Raises:
        FormatFault: an unknown escape.
    """
    parts: list[bytes] = []
    at = 0
    for match in _ESCAPE.finditer(text):
        parts.append(text[at : match.start()].encode(errors="surrogateescape"))
        parts.append(_escape_byte(match[1]))
        at = match.end()
    parts.append(text[at:].encode(errors="surrogateescape"))
    return b"".join(parts)


def _escape_byte(letter: str) -> bytes:
    if letter in _PLAIN:
        return _PLAIN[letter].encode()
    if letter.startswith("x") and len(letter) == 3:
        return bytes.fromhex(letter[1:])
    raise FormatFault(f"'\\{letter}' is not an escape; there are \\n \\t \\r \\\\ and \\xHH")


def compile_format(text: str, *, null: bytes = b"") -> Render:
    """A function that turns records into the bytes to print, a newline after each record.

    `null` is shown where a key, value or header is null (JSON has its own null).

    Raises:
        FormatFault: an unknown letter or escape.
    """
    if text == "json":
        return _render_json
    fields = _fields(text, null=null)

    def render(records: Iterable[Record]) -> bytes:
        lines = [b"".join([field(record) for field in fields]) for record in records]
        lines.append(b"")
        return b"\n".join(lines)

    return render


def _fields(text: str, *, null: bytes) -> list[Field]:
    letters = _letters(null)
    fields: list[Field] = []
    for index, piece in enumerate(re.split(r"%(.?)", text, flags=re.DOTALL)):
        if index % 2 == 0:
            if piece:
                fields.append(_constant(unescape(piece)))
        elif piece in letters:
            fields.append(letters[piece])
        else:
            raise FormatFault(f"'%{piece}' is not a letter of a format: {LETTERS_HELP}")
    return fields


def _letters(null: bytes) -> dict[str, Field]:
    return {
        "k": lambda record: null if record.key is None else record.key,
        "v": lambda record: null if record.value is None else record.value,
        "o": lambda record: b"%d" % record.offset,
        "p": lambda record: b"%d" % record.partition,
        "t": lambda record: record.topic.encode(),
        "T": lambda record: b"%d" % record.timestamp_ms,
        "h": lambda record: b",".join(
            name.encode() + b"=" + (null if value is None else value)
            for name, value in record.headers.items()
        ),
        "%": lambda record: b"%",
    }


def _constant(raw: bytes) -> Field:
    return lambda record: raw


def _render_json(records: Iterable[Record]) -> bytes:
    encode = msgspec.json.encode
    lines = [encode(_json_line(record)) for record in records]
    lines.append(b"")
    return b"\n".join(lines)


def _json_line(record: Record) -> JsonLine:
    return JsonLine(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        key=bytes_to_text(record.key),
        value=bytes_to_text(record.value),
        headers={name: bytes_to_text(value) for name, value in record.headers.items()},
    )


def split_lines(kept: bytes, chunk: bytes) -> tuple[list[bytes], bytes]:
    """The whole lines in what was kept from before plus a new chunk, and what to keep now.
    Only `\\n` ends a line; all other bytes, `\\r` too, belong to it."""
    lines = (kept + chunk).split(b"\n")
    rest = lines.pop()
    return lines, rest


def parse_line(
    line: bytes, *, separator: bytes | None, null: bytes | None
) -> tuple[bytes | None, bytes | None]:
    """Key and value of a line: what lies before and after the first `separator`, or no key at all
    without one. A key or value equal to `null` is null.

    Raises:
        LineFault: the line has no separator.
    """
    if separator is None:
        return None, (None if line == null else line)
    key, found, value = line.partition(separator)
    if not found:
        shown = line[:60].decode(errors="backslashreplace")
        raise LineFault(f"no key separator {separator.decode(errors='replace')!r} in {shown!r}")
    return (None if key == null else key), (None if value == null else value)
