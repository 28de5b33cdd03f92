"""The command line: thin, it parses, calls a verb and prints.

Exit codes: 0 done, 1 a run failed, 2 bad input (nothing was started), 3 time was up for a study
(``--minutes``), 130 interrupted.
"""

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``qbayes`` with ``argv`` (by default the process's arguments) and return the exit code."""
    # everything else is imported here: `python -m qbayes.cli.demo` must not find itself imported already.
    from qbayes.cli.app import app
    from qbayes.cli.console import run_guarded

    return run_guarded(app, argv)
