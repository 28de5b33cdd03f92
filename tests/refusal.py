"""What every refusal of the command line looks like."""

from typing import Any


def refused(result: Any, *words: str, code: int = 2) -> None:
    """Three parts on standard error, the exit code, no traceback, and nothing on standard output."""
    assert result.code == code, result.err
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert "\n  got: " in result.err
    assert "\n  do:  " in result.err
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err
