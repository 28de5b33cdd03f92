"""The cache of compiled C: right after any damage, and closed to others.

The library of most tests is one function that gives 42.
"""

import ctypes
import hashlib
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handmade.tiny_library import (  # noqa: F401  (fixtures of these tests)
    CC,
    cache_fixture,
    compilations,
    files_of,
    needs_compiler,
    number_of,
    source_of,
    tiny_fixture,
)
from qbayes.integer import c_library as integer_library
from qbayes.native import library
from qbayes.native.folder import NoLibrary, open_folder
from qbayes.native.library import Source, cache_folder, load
from qbayes.noise import c_kernel

pytestmark = needs_compiler


def put_another(cache: Path, tmp_path: Path, number: int = 13) -> None:
    """In the place of the kept library one that gives another number, as if it had been kept there."""
    kept, stated = files_of(cache)
    subprocess.run([CC or "", *source_of(tmp_path, number).flags[0], "-shared", "-o", str(kept),
                    str(source_of(tmp_path, number).path)], check=True)  # fmt: skip
    stated.write_text(f"{hashlib.sha256(kept.read_bytes()).hexdigest()}  {kept.name}\n")


def test_a_library_is_compiled_once_and_lies_beside_its_hash(
    cache: Path, tiny: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = compilations(monkeypatch)
    assert [number_of(load(tiny)) for _ in range(3)] == [42] * 3
    assert compiled == ["tiny"]
    kept, stated = files_of(cache)
    assert kept.suffix == ".so"
    assert stated.read_text() == f"{hashlib.sha256(kept.read_bytes()).hexdigest()}  {kept.name}\n"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (kept, stated)} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (cache, *list(cache.parents)[:2])} == {0o700}


def test_another_source_another_library(cache: Path, tmp_path: Path) -> None:
    """Each has the number of a closed file for its path: the loader must not take one for the other."""
    assert [number_of(load(source_of(tmp_path, n))) for n in (42, 13, 7, 42)] == [42, 13, 7, 42]
    assert number_of(load(source_of(tmp_path, 42, "other"))) == 42


def test_an_included_file_counts(cache: Path, tiny: Source, tmp_path: Path) -> None:
    included = tmp_path / "number.h"
    tiny.path.write_text('#include "number.h"\nint number(void) { return NUMBER; }\n')
    source = Source(tiny.name, tiny.path, (included,), tiny.flags, tiny.switch)
    for number in (3, 4):
        included.write_text(f"#define NUMBER {number}\n")
        assert number_of(load(source)) == number


def test_what_is_written_is_on_the_disk_before_it_has_its_name(
    cache: Path, tiny: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is synced, then renamed, then the folder is synced; the library comes before its hash."""
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def renamed(old: str, new: str, **where: int) -> None:
        done.append(new.rpartition(".")[2])
        replace(old, new, **where)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    load(tiny)
    assert done == ["file", "so", "folder", "file", "sha256", "folder"]


Damage = Callable[[bytes], bytes]
DAMAGES: dict[str, Damage] = {
    "empty": lambda content: b"",
    "one byte": lambda content: content[:1],
    "half": lambda content: content[: len(content) // 2],
    "one byte less": lambda content: content[:-1],
    "one byte more": lambda content: content + b"\n",
    "one bit": lambda content: content[:40] + bytes([content[40] ^ 4]) + content[41:],
    "zeros": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("of", [0, 1], ids=["library", "hash"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_built_again(
    damage: str, of: int, cache: Path, tiny: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(tiny)
    whole = {path: path.read_bytes() for path in files_of(cache)}
    path = files_of(cache)[of]
    path.write_bytes(DAMAGES[damage](whole[path]))
    compiled = compilations(monkeypatch)
    assert number_of(load(tiny)) == 42
    assert compiled == ["tiny"]
    assert {path: path.read_bytes() for path in files_of(cache)} == whole


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_cut_and_no_bit_is_overlooked(cache: Path, tiny: Source, data: st.DataObject) -> None:
    load(tiny)
    kept = files_of(cache)[0]
    whole = kept.read_bytes()
    length = data.draw(st.integers(0, len(whole)))
    some = bytearray(whole[:length])
    if length:
        some[data.draw(st.integers(0, length - 1))] ^= data.draw(st.integers(int(length == len(whole)), 255))
    damaged = bytes(some)
    kept.write_bytes(damaged)
    try:
        with open_folder(cache) as held:
            assert held.library(kept.name) == (whole if damaged == whole else None)
    finally:
        kept.write_bytes(whole)


@pytest.mark.parametrize("gone", [0, 1], ids=["library", "hash"])
def test_what_was_cut_off_between_the_two_files_is_built_again(gone: int, cache: Path, tiny: Source) -> None:
    load(tiny)
    files_of(cache)[gone].unlink()
    assert number_of(load(tiny)) == 42
    assert len(files_of(cache)) == 2


def test_a_library_of_an_earlier_version_without_a_hash_is_not_trusted(cache: Path, tiny: Source) -> None:
    load(tiny)
    kept, stated = files_of(cache)
    stated.unlink()
    kept.write_bytes(b"\x7fELF")
    assert number_of(load(tiny)) == 42


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_only_a_plain_file_is_read(kind: str, cache: Path, tiny: Source, tmp_path: Path) -> None:
    load(tiny)
    kept = files_of(cache)[0]
    kept.rename(tmp_path / "elsewhere")
    if kind == "link":
        kept.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(kept)
    assert number_of(load(tiny)) == 42
    assert stat.S_ISREG(kept.lstat().st_mode)


def test_what_is_loaded_is_what_was_checked(
    cache: Path, tiny: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is changed between the check and the loading, and cut off afterwards."""
    load(tiny)
    opens = library._open

    def late(name: str, content: bytes) -> ctypes.CDLL:
        put_another(cache, tmp_path)
        return opens(name, content)

    monkeypatch.setattr(library, "_open", late)
    loaded = load(tiny)
    for path in files_of(cache):
        os.truncate(path, 0)
    assert number_of(loaded) == 42


def test_a_file_stands_in_for_memory(cache: Path, tiny: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> ctypes.CDLL:
        raise OSError("not allowed")

    monkeypatch.setattr(library, "_from_memory", refused)
    assert number_of(load(tiny)) == 42


UNSAFE: dict[str, tuple[Callable[[Path], None], str]] = {
    "writable by its group": (lambda path: path.chmod(0o770), "can be written to by other users"),
    "writable by others": (lambda path: path.chmod(0o702), "can be written to by other users"),
    "below what all may write": (lambda path: path.parent.chmod(0o777), "can be written to by all users"),
    "far below what all may write": (lambda path: path.parents[1].chmod(0o707), "can be written to by all"),
}


@pytest.mark.parametrize("how", UNSAFE)
def test_a_folder_that_others_can_write_to_is_not_used(
    how: str, cache: Path, tiny: Source, tmp_path: Path
) -> None:
    load(tiny)
    put_another(cache, tmp_path)
    assert number_of(load(tiny)) == 13, "this test must plant what would be loaded"
    make, reason = UNSAFE[how]
    make(cache)
    with pytest.raises(NoLibrary, match=f"{reason}.*what lies there is not run"):
        load(tiny)


def test_a_linked_folder_is_judged_by_where_it_leads(cache: Path, tiny: Source, tmp_path: Path) -> None:
    """By that place, and by the one in which the link lies."""
    load(tiny)
    safe, shared = tmp_path / "safe", tmp_path / "shared"
    for place in (safe, shared):
        place.mkdir(mode=0o700)
    cache.rename(safe / "kernels")
    cache.symlink_to(safe / "kernels")
    assert number_of(load(tiny)) == 42
    shared.chmod(0o777)
    (safe / "kernels").rename(shared / "kernels")
    cache.unlink()
    cache.symlink_to(shared / "kernels")
    with pytest.raises(NoLibrary, match=f"below {shared}, which can be written to by all users"):
        load(tiny)
    cache.unlink()
    (shared / "kernels").rename(safe / "kernels")
    cache.symlink_to(safe / "kernels")
    assert number_of(load(tiny)) == 42
    cache.parent.chmod(0o777)
    with pytest.raises(NoLibrary, match=f"below {cache.parent}, which can be written to by all users"):
        load(tiny)


def test_a_folder_of_another_user_is_not_used(
    cache: Path, tiny: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(tiny)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(NoLibrary, match=f"{cache} belongs to another user: what lies there is not run"):
        load(tiny)


def test_a_folder_below_that_of_another_user_is_not_used(
    cache: Path, tiny: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(tiny)
    found = os.stat_result((stat.S_IFDIR | 0o755, 0, 0, 1, os.geteuid() + 1, 0, 0, 0, 0, 0))
    of_path = Path.stat

    def stranger(path: Path, **options: bool) -> os.stat_result:
        return found if path == cache.parent else of_path(path, **options)

    monkeypatch.setattr(Path, "stat", stranger)
    with pytest.raises(NoLibrary, match=f"below {cache.parent}, which belongs to another user"):
        load(tiny)


def test_a_shared_folder_with_the_sticky_bit_may_lie_above(cache: Path, tiny: Source) -> None:
    """As /tmp: nobody but its owner can move what lies in it."""
    load(tiny)
    cache.parents[1].chmod(0o1777)
    assert number_of(load(tiny)) == 42


@pytest.mark.parametrize("change", ["owner", "group", "others"])
def test_a_file_of_others_is_not_read(
    change: str, cache: Path, tiny: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(tiny)
    kept = files_of(cache)[0]
    me = os.geteuid()
    with open_folder(cache) as held:
        assert held.library(kept.name) is not None
        if change == "owner":
            monkeypatch.setattr(os, "geteuid", lambda: me + 1)
        else:
            kept.chmod(0o620 if change == "group" else 0o602)
        assert held.library(kept.name) is None


def test_a_folder_is_held_by_its_descriptor(cache: Path, tiny: Source, tmp_path: Path) -> None:
    """Another folder in its place, after it was found safe, is not looked at."""
    load(tiny)
    name = files_of(cache)[0].name
    with open_folder(cache) as held:
        cache.rename(tmp_path / "moved")
        cache.mkdir()
        assert held.library(name) is not None


def test_a_relative_cache_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for stated in ("here", "./here", "", "../here"):
        monkeypatch.setenv("XDG_CACHE_HOME", stated)
        assert cache_folder() == tmp_path / ".cache" / "qbayes" / "kernels"


def test_each_kernel_has_its_switch(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QBAYES_NOISE_KERNEL", "off")
    monkeypatch.setenv("QBAYES_INTEGER_KERNELS", "off")
    assert c_kernel.kernel.__wrapped__() is None  # type: ignore[attr-defined]
    assert integer_library.found.__wrapped__() == "QBAYES_INTEGER_KERNELS=off"  # type: ignore[attr-defined]
    assert not cache.exists()


def test_without_a_compiler_nothing_fails(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert c_kernel.kernel.__wrapped__() is None  # type: ignore[attr-defined]
    assert integer_library.found.__wrapped__() == "there is no C compiler"  # type: ignore[attr-defined]


def test_the_kernels_are_built_here() -> None:
    """Where a compiler exists they must: what compares them with torch would compare nothing."""
    assert c_kernel.kernel() is not None
    assert integer_library.why_no_kernels() == ""
