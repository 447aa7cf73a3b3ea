"""The entry point of the `headrace` command: turns endings of every kind into exit codes.

0 done, 1 the cluster said no, 2 wrong usage, 130 interrupted by Ctrl-C. A reader that has seen
enough (`| head`) is no failure: output stops, quietly, with 0. The commands are imported inside
`main`, so that a Ctrl-C during the imports is as quiet as any other.
"""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130
"""128 + SIGINT: what a shell expects of a program that Ctrl-C ended."""


def main() -> None:
    """Run the command line; never returns."""
    try:
        from headrace.cli.app import app

        app(prog_name="headrace")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        _abandon_stdout()
        sys.exit(0)


def _abandon_stdout() -> None:
    """Point stdout at nothing: the interpreter flushes it on its way out, into a closed pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


if __name__ == "__main__":
    main()
