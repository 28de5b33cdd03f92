"""What becomes of a stage that fails: its own fault is recorded, a lost device is another worker's turn."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from qbayes.errors import BadInput
from qbayes.study.store import Store
from qbayes.study.workplace import DeviceLost, Workplace

KEY = "0" * 16


def raising(error: Exception) -> Any:
    def do(folder: Path) -> NoReturn:
        raise error

    return do


@pytest.mark.parametrize("error", [RuntimeError("sizes do not match"), ValueError("CUDA error, in words")])
def test_the_fault_of_a_run_is_recorded(error: Exception, tmp_path: Path) -> None:
    at = Workplace(Store(tmp_path))
    assert not at.attempt("float", KEY, raising(error))
    assert str(error) in (at.store.why_failed("float", KEY) or "")


FAULT = "CUDA error: an illegal memory access was encountered"


@pytest.mark.parametrize(
    "fault",
    [RuntimeError(FAULT), BadInput("the device must exist on this machine", f"cuda: {FAULT}", "use auto")],
)
def test_a_lost_device_fails_no_run(fault: Exception, tmp_path: Path) -> None:
    """After such a fault every call of the process fails: the next runs would be blamed for it too."""
    at = Workplace(Store(tmp_path))
    with pytest.raises(DeviceLost):
        at.attempt("float", KEY, raising(fault))
    with pytest.raises(DeviceLost):
        at.attempt_stack("float", "stack", [(KEY, RUN)], raising(fault))
    assert at.store.why_failed("float", KEY) is None
    assert not at.store.is_done("float", KEY)


RUN: Mapping[str, Any] = {"method": "mcd", "task": "digits", "precision": "float"}
