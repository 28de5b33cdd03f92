"""Compilers that hang, fail or are killed, several processes at once, and no place to keep a library."""

import fcntl
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from handmade.tiny_library import (  # noqa: F401  (fixtures of these tests)
    CC,
    cache_fixture,
    compilations,
    fake_compiler,
    files_of,
    is_alive,
    needs_compiler,
    number_of,
    source_of,
    starts,
    tiny_fixture,
)
from qbayes.native import library
from qbayes.native.folder import NoLibrary
from qbayes.native.library import Source, load
from qbayes.noise import c_kernel

pytestmark = needs_compiler


def test_a_compiler_that_hangs_is_given_up_with_all_that_it_started(
    cache: Path, tiny: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child"
    hang = f"/bin/sleep 600 &\necho $! > {child}\nwait"
    log = fake_compiler(tmp_path / "bin", monkeypatch, hang)
    monkeypatch.setattr(library, "_PATIENCE", library.Patience(2.0))
    started = time.monotonic()
    for name in ("tiny", "other"):  # in all: the second one is not waited for
        with pytest.raises(NoLibrary, match="did not end"):
            load(source_of(tmp_path, 42, name))
    assert time.monotonic() - started < 20
    assert starts(log) == 1
    assert not is_alive(int(child.read_text()))


def test_a_compiler_is_given_thirty_seconds() -> None:
    assert library._PATIENCE.seconds == 30


def test_the_next_process_does_not_wait_for_a_compiler_that_hung(
    cache: Path, tiny: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_compiler(tmp_path / "bin", monkeypatch, "/bin/sleep 600")
    compiled = compilations(monkeypatch)
    monkeypatch.setattr(library, "_PATIENCE", library.Patience(0.2))
    with pytest.raises(NoLibrary, match=r"cc did not end within 0 s"):
        load(tiny)
    given_up = cache / "given-up.json"
    for minutes, again in ((0, False), (59, False), (61, True), (-5, True)):
        state = json.loads(given_up.read_text())
        given_up.write_text(json.dumps({**state, "at": time.time() - 60 * minutes}))
        monkeypatch.setattr(library, "_PATIENCE", library.Patience(0.2))
        compiled.clear()
        with pytest.raises(
            NoLibrary, match=r"within 0 s$" if again else f"{minutes} minutes ago.*{given_up}"
        ):
            load(tiny)
        assert len(compiled) == again


def test_on_a_busy_machine_a_late_compiler_is_tried_again_by_the_next_process(
    cache: Path, tiny: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fake_compiler(tmp_path / "bin", monkeypatch, "/bin/sleep 600")
    monkeypatch.setattr(library, "is_starved", lambda: True)
    for process in (1, 2):
        monkeypatch.setattr(library, "_PATIENCE", library.Patience(0.2))
        with pytest.raises(NoLibrary, match=r"cc did not end within 0 s$"):
            load(tiny)
        assert starts(log) == process
    assert not (cache / "given-up.json").exists()


@pytest.mark.parametrize(("share", "starved"), [(1.0, False), (0.3, False), (0.2, True), (0.01, True)])
def test_a_process_is_starved_below_a_quarter_of_a_core(
    share: float, starved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = itertools.count()
    wall = iter([0.0, 0.05 / share])
    monkeypatch.setattr(library.time, "thread_time", lambda: next(used) * 0.01)
    monkeypatch.setattr(library.time, "monotonic", lambda: next(wall))
    assert library.is_starved() == starved


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"at": "x"}', '{"compiler": "cc"}', "\xff"])
def test_a_note_that_says_nothing_is_no_reason(content: str, cache: Path, tiny: Source) -> None:
    cache.mkdir(parents=True, mode=0o700)
    (cache / "given-up.json").write_text(content, encoding="latin-1")
    assert number_of(load(tiny)) == 42


def test_another_compiler_than_the_one_that_hung_is_tried(cache: Path, tiny: Source) -> None:
    cache.mkdir(parents=True, mode=0o700)
    (cache / "given-up.json").write_text(json.dumps({"compiler": "/opt/bin/cc", "at": time.time()}))
    assert number_of(load(tiny)) == 42


def test_ctrl_c_ends_the_compiler(
    cache: Path, tiny: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child"
    fake_compiler(tmp_path / "bin", monkeypatch, f"echo $$ > {child}\nexec /bin/sleep 600")
    waiting = threading.Event()
    wait = subprocess.Popen[bytes].wait

    def noted(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        waiting.set()
        return wait(process, timeout)

    def interrupt() -> None:
        assert waiting.wait(30)
        while not child.exists() or not child.read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(subprocess.Popen, "wait", noted)
    # what is started in the background inherits that Ctrl-C is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            load(tiny)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not is_alive(int(child.read_text()))
    monkeypatch.setenv("PATH", os.path.dirname(CC or ""))
    assert number_of(load(tiny)) == 42


def test_a_compiler_that_fails_is_quoted(
    cache: Path, tiny: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_compiler(tmp_path / "bin", monkeypatch, "echo 'no such luck' >&2; echo more >&2; exit 3")
    with pytest.raises(NoLibrary, match=r"cc fails: no such luck$"):
        load(tiny)
    assert list(cache.iterdir()) == []


def test_flags_that_this_compiler_does_not_know_are_left_out(cache: Path, tiny: Source) -> None:
    flags = ((*tiny.flags[0], "-fno-such-flag-at-all"), tiny.flags[0])
    assert number_of(load(Source(tiny.name, tiny.path, (), flags, tiny.switch))) == 42


def test_a_compiler_of_the_current_folder_is_not_found(
    cache: Path, tiny: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fake_compiler(tmp_path / "bin", monkeypatch, "exit 1")
    monkeypatch.chdir(tmp_path / "bin")
    for path in ("", ".", "../bin"):
        monkeypatch.setenv("PATH", path)
        with pytest.raises(NoLibrary, match="there is no C compiler"):
            load(tiny)
    assert starts(log) == 0


@pytest.mark.parametrize("trouble", ["no home", "no folder", "full", "no temporary folder"])
def test_without_a_place_there_is_a_reason(
    trouble: str, cache: Path, tiny: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def homeless() -> None:
        raise RuntimeError("Could not determine home directory.")

    if trouble == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", homeless)
    elif trouble == "no folder":
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "below"))
    elif trouble == "full":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    words = "there is no home folder" if trouble == "no home" else "cannot be kept"
    with pytest.raises(NoLibrary, match=words):
        load(tiny)
    assert not cache.exists() or list(cache.iterdir()) == []


def test_what_a_killed_process_left_is_swept(cache: Path, tiny: Source) -> None:
    load(tiny)
    kept, stated = files_of(cache)
    for path in (kept, stated):
        path.rename(f"{path}.new")
    assert number_of(load(tiny)) == 42
    assert sorted(cache.iterdir()) == [kept, stated]


LOAD = (
    "import sys; from pathlib import Path\n"
    "from qbayes.native.library import Source, load\n"
    "path = Path(sys.argv[1])\n"
    "print(load(Source('tiny', path, (), (('-O1', '-fPIC'),), 'QBAYES_TEST_KERNEL')).number())\n"
)


def start(tiny: Source, *before: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(c_kernel.__file__).parents[1])}
    command = [*before, sys.executable, "-c", LOAD, str(tiny.path)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def slow_compiler(place: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> Path:
    search = os.environ["PATH"]
    return fake_compiler(place, monkeypatch, f'/bin/sleep {seconds}\nPATH={search} exec {CC} "$@"')


def test_processes_that_build_at_once_compile_once(
    cache: Path, tiny: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = slow_compiler(tmp_path / "bin", monkeypatch, 0.4)
    processes = [start(tiny) for _ in range(3)]
    assert [process.communicate(timeout=60)[0] for process in processes] == ["42\n"] * 3
    assert starts(log) == 2, "one compiles and links"
    assert len(files_of(cache)) == 2


def test_threads_that_build_at_once_compile_once(
    cache: Path, tiny: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = compilations(monkeypatch)
    with ThreadPoolExecutor(8) as pool:
        assert [number_of(made) for made in pool.map(load, [tiny] * 8)] == [42] * 8
    assert compiled == ["tiny"]


def test_another_process_that_builds_is_not_waited_for_for_ever(
    cache: Path, tiny: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir(parents=True, mode=0o700)
    monkeypatch.setattr(library, "_PATIENCE", library.Patience(0.2))
    held = os.open(cache, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(NoLibrary, match="another process is compiling, and takes too long"):
            load(tiny)
    finally:
        os.close(held)
    monkeypatch.setattr(library, "_PATIENCE", library.Patience(30.0))
    assert number_of(load(tiny)) == 42


def test_a_drive_that_knows_no_locks_serves(
    cache: Path, tiny: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unknown)
    assert number_of(load(tiny)) == 42


def test_a_kill_while_it_builds_leaves_nothing_in_the_way(
    cache: Path, tiny: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler outlives the process; the lock does not."""
    search = os.environ["PATH"]
    log = slow_compiler(tmp_path / "bin", monkeypatch, 3)
    process = start(tiny)
    while not starts(log):
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=30)
    monkeypatch.setenv("PATH", search)
    assert number_of(load(tiny)) == 42
    assert len(files_of(cache)) == 2


def test_a_disk_that_takes_no_more_leaves_no_half_of_a_library(cache: Path, tiny: Source) -> None:
    """The system gives the compiler and Python 1024 bytes a file."""
    out, said = start(tiny, "/bin/sh", "-c", 'ulimit -f 1; exec "$@"', "sh").communicate(timeout=60)
    assert out == ""
    assert "NoLibrary" in said
    assert not list(cache.iterdir())
    assert number_of(load(tiny)) == 42
