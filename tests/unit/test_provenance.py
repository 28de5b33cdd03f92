"""Where a result comes from: the commit of the code that ran, its versions, and the machine."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from qbayes import provenance as origin
from qbayes.lab.study.store.table import ORIGIN
from qbayes.provenance import commit_of, instructions, processor, provenance, versions


def git(folder: Path, *words: str) -> str:
    identity = {
        f"GIT_{who}_{what}": "nobody@example.org"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    done = subprocess.run(
        ["git", "-C", str(folder), *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull},
    )
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package in a repository of its own, committed."""
    package = tmp_path / "repository" / "src" / "qbayes"
    package.mkdir(parents=True)
    (package / "provenance.py").write_text("code = 1\n")
    (tmp_path / "repository" / "README.md").write_text("words\n")
    git(tmp_path / "repository", "init", "--quiet")
    git(tmp_path / "repository", "add", ".")
    git(tmp_path / "repository", "commit", "--quiet", "--message", "first")
    return package


def test_a_checkout_names_its_commit(package: Path) -> None:
    first = git(package, "rev-parse", "HEAD")
    assert commit_of(package) == first
    (package / "provenance.py").write_text("code = 2\n")
    assert commit_of(package) == f"{first}+dirty"
    git(package, "commit", "--quiet", "--all", "--message", "second")
    assert commit_of(package) == git(package, "rev-parse", "HEAD") != first


def test_only_the_package_itself_makes_a_checkout_dirty(package: Path) -> None:
    (package.parents[1] / "README.md").write_text("other words\n")
    assert commit_of(package) == git(package, "rev-parse", "HEAD")
    (package / "new.py").write_text("")
    assert commit_of(package).endswith("+dirty")


def test_a_package_installed_inside_of_somebodys_repository_is_no_part_of_it(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = package.parents[1] / ".venv" / "lib" / "site-packages" / "qbayes"
    inside.mkdir(parents=True)
    (inside / "provenance.py").write_text("code = 3\n")
    monkeypatch.setattr(origin, "_commit_of_installation", lambda: None)
    assert commit_of(inside) == f"release {versions()['qbayes']}"
    monkeypatch.setattr(origin, "_commit_of_installation", lambda: "0123abc")
    assert commit_of(inside) == "0123abc"


def test_a_checkout_that_git_cannot_read_is_no_release(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert commit_of(package) == "unknown"


def test_a_hook_of_another_repository_does_not_mislead(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside of a hook git's variables name the repository of the hook."""
    monkeypatch.setenv("GIT_DIR", "/nowhere/.git")
    with monkeypatch.context() as patch:
        patch.delenv("GIT_DIR")
        head = git(package, "rev-parse", "HEAD")
    assert commit_of(package) == head


def test_all_of_it_is_words_for_columns_of_a_row() -> None:
    found: Mapping[str, str] = provenance(torch.device("cpu"))
    assert set(found) == set(ORIGIN)
    assert all(isinstance(value, str) and value for value in found.values())
    assert found["torch"] == torch.__version__
    assert found["device"].startswith("cpu (")


@pytest.mark.parametrize(
    ("has", "told"),
    [
        ({"amx_int8": True, "avx512_vnni": True, "avx2": False, "l2_cache_size": 1}, "amx_int8 avx512_vnni"),
        ({"i8mm": True, "bf16": True}, "i8mm bf16"),
        ({}, ""),
    ],
)
def test_instructions_are_those_that_the_processor_says_it_has(
    has: dict[str, object], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    level = torch.backends.cpu.get_cpu_capability()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has, raising=False)
    monkeypatch.delenv("DNNL_MAX_CPU_ISA", raising=False)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    assert instructions.__wrapped__() == (f"{level}: {told}" if told else level)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert instructions.__wrapped__().endswith("; ONEDNN_MAX_CPU_ISA=AVX2")
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert instructions.__wrapped__().startswith(level)
    assert processor()
