"""House rules that no linter knows: leftovers, long functions, names that hide the stdlib."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 1_200
LONG_FILE_LINES = 400
SOURCES = sorted(
    file
    for root in ROOT.glob("*/src")
    for file in root.rglob("*.py")
    if "__pycache__" not in file.parts
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
OTHERS = sorted(file for folder in ("bench", "e2e") for file in (ROOT / folder).rglob("*.py"))
TEXTS = {file: file.read_text() for file in SOURCES + TESTS + OTHERS}

# Written in pieces, so that this file doesn't find itself.
LEFTOVERS = re.compile(
    r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b|(?i:\b(for no" r"w|place" r"holder)\b)"
)
BANNED = {
    r"\bprint\(": "print() in a library; log, or write to the console object",
    r"\bbreakpoint\(|\bpdb\b": "a debugger",
    r"(?<![\w.])time\.sleep\(": "a sleep that blocks the loop",
    r"except:|except BaseException:\s*pass": "an except that hides everything",
    r"\bpickle\.|import pickle|(?<![.\w])(eval|exec)\(": "code from data",
    r"os\.environ\[": "environment read in the middle; settings.py does that",
    r"utcnow\(|datetime\.now\(\)": "a clock without a zone",
}
# path → patterns that are its business
ALLOWED = {
    "headrace/cli": (r"\bprint\(", r"(?<![\w.])time\.sleep\("),
    "headrace/demo": (r"\bprint\(", r"(?<![\w.])time\.sleep\("),
    "headrace/broker/__main__.py": (r"\bprint\(",),
}


def _relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def _code(file: Path) -> Iterator[tuple[int, str]]:
    """The file's lines by number, without what stands in strings and comments."""
    lines: dict[int, str] = {}
    with file.open("rb") as stream:
        for token in tokenize.tokenize(stream.readline):
            if token.type not in {tokenize.STRING, tokenize.COMMENT, tokenize.ENCODING}:
                number = token.start[0]
                before = lines.get(number, "")
                joined = before[-1:].isalnum() and token.string[:1].isalpha()
                lines[number] = before + " " * joined + token.string
    yield from lines.items()


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def _code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body, its docstring aside."""
    first = function.body[0]
    has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    start = (first.end_lineno or 0) + 1 if has_docstring else first.lineno
    return (function.end_lineno or 0) - start + 1


def _lines_with(pattern: re.Pattern[str], file: Path) -> list[str]:
    return [
        f"{_relative(file)}:{number}: {found[0]!r}"
        for number, line in enumerate(TEXTS[file].splitlines(), 1)
        if (found := pattern.search(line))
    ]


def test_no_leftovers() -> None:
    assert [line for file in TEXTS for line in _lines_with(LEFTOVERS, file)] == []


@pytest.mark.parametrize("banned", BANNED)
def test_no_banned_calls(banned: str) -> None:
    pattern = re.compile(banned)
    # Taking files apart is slow; most don't have the words at all.
    suspects = [file for file in SOURCES if pattern.search(TEXTS[file]) and not _may(file, banned)]
    found = [
        f"{_relative(file)}:{number}: {BANNED[banned]}"
        for file in suspects
        for number, line in _code(file)
        if pattern.search(line)
    ]
    assert found == []


def _may(file: Path, banned: str) -> bool:
    return any(
        banned in patterns and f"/{folder}/" in f"/{_relative(file)}/"
        for folder, patterns in ALLOWED.items()
    )


def test_functions_and_files_are_short_enough_to_be_read() -> None:
    """Of a file that is too long: which two nouns is it?"""
    found = []
    for file, text in TEXTS.items():
        if (lines := text.count("\n")) > FILE_LINES_MAX:
            found.append(f"{_relative(file)}: {lines} lines")
        for function in _functions(ast.parse(text)):
            if (size := _code_lines(function)) > FUNCTION_LINES_MAX:
                found.append(f"{_relative(file)}: {function.name} has {size} lines")
    assert found == []


def test_few_files_are_long() -> None:
    long = [_relative(file) for file in SOURCES if TEXTS[file].count("\n") > LONG_FILE_LINES]
    assert len(long) <= len(SOURCES) / 10, f"too many long files: {', '.join(long)}"


def test_public_things_are_described() -> None:
    found = []
    for file in SOURCES:
        tree = ast.parse(TEXTS[file])
        if not ast.get_docstring(tree):
            found.append(f"{_relative(file)} doesn't say what it is for")
        for node in tree.body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not (
                node.name.startswith("_") or ast.get_docstring(node)
            ):
                found.append(f"{_relative(file)}: {node.name} has no docstring")
    assert found == []


def test_no_module_is_named_like_one_of_the_standard_library() -> None:
    """Running a file by its path puts its folder first on sys.path (CONTRIBUTING.md)."""
    deliberate = {"headrace/sdk/json.py"}  # promised to users; nothing in that folder is a script
    assert [
        _relative(file)
        for file in SOURCES
        if file.stem in sys.stdlib_module_names
        and not any(_relative(file).endswith(name) for name in deliberate)
    ] == []


def test_no_module_is_a_drawer_for_everything() -> None:
    drawers = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert [_relative(f) for f in SOURCES if drawers & {f.stem, f.parent.name}] == []


def test_no_two_test_files_share_a_path_below_their_folder() -> None:
    """`--import-mode=importlib` allows equal names; equal names are still hard to tell apart."""
    names = [file.relative_to(ROOT / "tests").as_posix() for file in TESTS]
    assert len(names) == len(set(names))


def test_the_imports_keep_their_layers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as f; f()",
         "--no-logo", "--no-cache"],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_attribute_is_read_before_an_await_and_written_after_it() -> None:
    """`self.x |= await f()` reads x, waits, and forgets what others wrote into x meanwhile."""
    found = [
        f"{_relative(file)}:{node.lineno}"
        for file in SOURCES
        for node in ast.walk(ast.parse(TEXTS[file]))
        if isinstance(node, ast.AugAssign)
        and isinstance(node.target, ast.Attribute)
        and any(isinstance(each, ast.Await) for each in ast.walk(node.value))
    ]
    assert found == []
