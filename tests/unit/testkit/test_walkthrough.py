"""The reader of pages is itself read."""

from __future__ import annotations

from pathlib import Path

import pytest

from testkit.walkthrough import Step, matches, steps_of

PAGE = """
Text with `$ no command`.

```console
$ echo one
one
$ printf 'a\\n' \\
> | cat
```

```sh
$ not run
```

```python
print(1)
```

```text
1
```

Words in between.

```text
not an output
```
"""


def test_a_page_is_taken_apart(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert steps_of(page) == [
        Step("shell", "echo one", "one", 5),
        Step("shell", "printf 'a\\n' \\\n| cat", "", 7),
        Step("python", "print(1)\n", "1\n", 15),
    ]


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ("a\n", "a"),
        ("a...c", "abc"),
        ("a...c", "a\nb\nc"),
        ("...", ""),
        ("a", "a  \n"),
        ("(x)", "(x)"),
    ],
)
def test_outputs_as_promised(expected: str, actual: str) -> None:
    assert matches(expected, actual)


@pytest.mark.parametrize(
    ("expected", "actual"), [("a", "ab"), ("a...c", "ab"), ("", "x"), ("a\nb", "a b"), ("x", "")]
)
def test_outputs_that_are_not_as_promised(expected: str, actual: str) -> None:
    assert not matches(expected, actual)
