"""Copies of the project: a mutation is put into a copy, never into the source that somebody works on."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "src/qbayes"


def copy_project(target: Path) -> Path:
    """The files that git holds or would hold, with their times, so that what Python compiled stays valid."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source = ROOT / name
        # a file that was deleted and not yet committed is still listed; a link is somebody's environment.
        if source.is_file() and not source.is_symlink():
            place = target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place)
    return target


def test_hashes() -> dict[str, str]:
    """The files of tests, with what their content hashes to."""
    found = sorted((ROOT / "tests").rglob("test_*.py"))
    return {str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def environment(tree: Path) -> dict[str, str]:
    """In which the tests of a copy find its source, also in processes that they start."""
    paths = os.pathsep.join(str(tree / part) for part in ("src", "tests"))
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
