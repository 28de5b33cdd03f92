"""The last line of a run: how many tests were skipped, and why.

On a machine that ``.ci/run`` completed, a test that is skipped for what a package brings fails the run: it
would have run, had it looked in the right place.
"""

import os
from collections import Counter

import pytest

from needs import BEYOND_PACKAGES

COMPLETE = "QBAYES_COMPLETE"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> object:
    """Behind pytest's own last line; the processes of xdist have no terminal."""
    result = yield
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None:
        return result
    found = reasons(terminal.stats.get("skipped", []))
    terminal.write_line(f"skipped {found.total()}" + (f": {counted(found)}" if found else ""))
    wrong = Counter({why: count for why, count in found.items() if not is_allowed(why)})
    if wrong and os.environ.get(COMPLETE) == "1":
        terminal.write_line(f"failed: this machine is complete, and yet {counted(wrong)}", red=True)
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
    return result


def reasons(skipped: list[pytest.TestReport]) -> Counter[str]:
    """How often each was given. A file that was skipped whole counts once."""
    return Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)


def is_allowed(reason: str) -> bool:
    return reason.removeprefix("needs ") in BEYOND_PACKAGES


def counted(found: Counter[str]) -> str:
    return "; ".join(f"{count} × {why}" for why, count in found.most_common())
