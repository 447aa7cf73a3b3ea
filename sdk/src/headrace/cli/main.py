"""The entry point of the `headrace` command: turns endings of every kind into exit codes.

0 done, 1 the cluster said no, 2 wrong usage, 130 interrupted by Ctrl-C. A reader that has seen
enough (`| head`) is no failure. The commands are imported inside `main`, so that a Ctrl-C during
the imports is as quiet as any other.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""128 + SIGINT: what a shell expects of a program that Ctrl-C ended."""


def main() -> None:
    """Run the command line; never returns."""
    try:
        from headrace.cli.app import app
        from headrace.cli.streams import flush_stdout

        try:
            app(prog_name="headrace")
        finally:
            flush_stdout()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
