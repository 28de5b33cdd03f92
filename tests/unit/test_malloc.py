"""What an op lets go is kept for the next: a pass that has run before asks the system for no memory."""

import subprocess
import sys

import pytest

import needs
from qbayes.integer.backends.onednn.trial import keep_freed_memory

# In a process of its own: how much memory is free, and where, depends on all that ran before.
FAULTS = """
import resource, torch
torch.set_num_threads(1)
from qbayes.lab.bench.subjects import make_subject
from qbayes.integer.posterior import load
from qbayes.quant.precision import Precision
subject = make_subject("lenet", "mcd", Precision(weight=8, activation=8))
deployed, x = load(subject.program, "onednn"), subject.network.rows(256)
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    deployed.predict(x, 2)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@needs.unless(sys.platform == "linux", needs.LINUX)
def test_a_pass_that_has_run_before_needs_no_new_pages() -> None:
    needs.require(keep_freed_memory(), needs.MALLOPT)
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    # its largest tensor alone has 256 · 20 · 28 · 28 bytes: 980 pages, in each of the two draws.
    assert int(done.stdout) < 100


def test_what_the_environment_says_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert keep_freed_memory.__wrapped__() is False
