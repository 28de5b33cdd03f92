"""``qbayes export --target c``: from a program to C that compiles, and refusals in three parts."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import needs
from handmade.permissions import permissions_hold  # noqa: F401  (a fixture)
from refusal import refused

Cli = Callable[..., Any]


def test_a_program_becomes_c_that_passes_its_own_test(cli: Cli, digits_program: Path, tmp_path: Path) -> None:
    told = cli("export", digits_program, tmp_path / "c", "--target", "c", "--name", "digits", "--json")
    assert told.code == 0, told.err
    assert set(told.json["files"]) == {path.name for path in (tmp_path / "c").iterdir()}
    assert told.json["constant_bytes"] < told.json["flash_bytes"]
    needs.program("make", "cc")
    done = subprocess.run(
        ["make", "-C", str(tmp_path / "c"), "test"], capture_output=True, text=True, check=False
    )
    assert "digits: the same bits as the reference" in done.stdout, done.stderr


def test_a_quantised_folder_is_lowered_on_the_way(cli: Cli, digits_quantised: Path, tmp_path: Path) -> None:
    told = cli("export", digits_quantised, tmp_path / "c", "--target", "c", "--flash", "64k", "--ram", "16k")
    assert told.code == 0, told.err
    assert "bytes of constants in flash" in told.out
    assert "next: make -C" in told.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--target", "d"], ["export target", "'d'"]),
        (["--target", "c", "--name", "2nd"], ["identifier of C", "'2nd'"]),
        (["--target", "c", "--name", "while"], ["identifier of C", "'while'"]),
        (["--target", "c", "--flash", "lots"], ["--flash", "'lots'", "256k"]),
        (["--target", "c", "--ram", "0"], ["--ram", "'0'"]),
        (["--target", "c", "--flash", "2k"], ["2,048 bytes of flash", "the layer", "--flash"]),
        (["--target", "c", "--ram", "1k"], ["1,024 bytes of RAM", "the layer", "--ram"]),
        ([], ["--target"]),
    ],
)
def test_bad_options_are_refused(
    cli: Cli, digits_program: Path, tmp_path: Path, options: list[str], words: list[str]
) -> None:
    refused(cli("export", digits_program, tmp_path / "c", *options), *words)
    assert not (tmp_path / "c").exists()


def test_a_folder_with_files_is_refused_unless_forced(cli: Cli, digits_program: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    refused(cli("export", digits_program, tmp_path, "--target", "c"), "holds files", "--force")
    assert cli("export", digits_program, tmp_path, "--target", "c", "--force").code == 0
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.usefixtures("permissions_hold")
def test_an_unwritable_folder_is_refused(cli: Cli, digits_program: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    refused(cli("export", digits_program, tmp_path / "locked" / "c", "--target", "c"), "writable")


def test_a_path_through_a_file_is_refused(cli: Cli, digits_program: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(cli("export", digits_program, tmp_path / "file" / "c", "--target", "c"), "writable")
    refused(cli("export", digits_program, tmp_path / "file", "--target", "c"), "folder")


def test_what_is_no_program_is_refused(cli: Cli, digits_posterior: Path, tmp_path: Path) -> None:
    refused(cli("export", digits_posterior, tmp_path / "c", "--target", "c"), "quantised")
    refused(cli("export", tmp_path / "no.qbayes", tmp_path / "c", "--target", "c"), "no.qbayes")
