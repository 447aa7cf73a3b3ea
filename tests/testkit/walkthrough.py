"""Pages as tests: takes a Markdown page apart into commands with the output they promise.

    ```console          `$ command` (`> ` continues it), then the output it must have
    ```python           a program; a ```text block right after it is the output it must have

`...` in an output stands for anything, also for several lines. Other blocks (sh, py) are fragments:
not run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to run. `expected` is None where the page promises nothing."""

    kind: Literal["shell", "python"]
    source: str
    expected: str | None
    line: int


def steps_of(page: Path) -> list[Step]:
    """What the page tells its reader to run, in order."""
    text = page.read_text()
    found: list[Step] = []
    end_of_python = -1
    for fence in _FENCE.finditer(text):
        line = text[: fence.start()].count("\n") + 1
        language, body = fence[1], fence[2]
        if language == "console":
            found += _commands(body, line + 1)
        elif language == "python":
            found.append(Step("python", body, None, line))
            end_of_python = fence.end()
        elif language == "text" and not text[end_of_python : fence.start()].strip():
            last = found.pop()
            found.append(Step(last.kind, last.source, body, last.line))
    return found


def _commands(body: str, line: int) -> list[Step]:
    found: list[Step] = []
    command: list[str] = []
    output: list[str] = []
    begin = line
    for number, text in enumerate(body.splitlines(), line):
        if text.startswith("$ "):
            if command:
                found.append(Step("shell", "\n".join(command), "\n".join(output), begin))
            command, output, begin = [text[2:]], [], number
        elif text.startswith("> ") and not output:
            command.append(text[2:])
        else:
            output.append(text)
    found.append(Step("shell", "\n".join(command), "\n".join(output), begin))
    return found


def matches(expected: str, actual: str) -> bool:
    """Whether the output is as promised; blanks at ends of lines don't count."""
    pattern = ".*".join(re.escape(part) for part in _squeezed(expected).split("..."))
    return re.fullmatch(pattern, _squeezed(actual), re.DOTALL) is not None


def _squeezed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
