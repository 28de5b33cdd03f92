"""``.ci/run`` completes its machine as far as it may, goes on without the rest, and says so.

Here it runs on a machine of scripts: what it calls is noted, and packages bring programs that only exist.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

import needs

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "run"
SHELL = ("bash", "env", "cat", "dirname", "basename", "grep", "touch", "tr", "uname", "cp", "chmod")
# the packages, and the programs in them; two bring a library, for which its compiler is asked.
PACKAGES = {
    "chromium": "chromium",
    "chromium-driver": "chromedriver",
    "gcc-arm-none-eabi": "arm-none-eabi-gcc",
    "libnewlib-arm-none-eabi": "libc.a",
    "qemu-system-arm": "qemu-system-arm",
    "clang": "clang",
    "libclang-rt-dev": "libclang_rt.asan",
    "make": "make",
    "gcc": "cc",
    "g++": "c++",
    "npm": "npm",
}
PROGRAM = """#!/usr/bin/env bash
here=$(dirname "$0")
case "$(basename "$0") $*" in
*-print-file-name=*libc.a*) [ -e "$here/libc.a" ] && echo "$here/libc.a" || echo libc.a ;;
*-print-file-name=*libclang*) [ -e "$here/libclang_rt.asan" ] && echo "$here/x.a" || echo x.a ;;
make*) echo "$(basename "$0") $*${QBAYES_COMPLETE:+ complete}" >> "$here/../log"
       [[ "$*" != "$(cat "$here/../broken")" ]] ;;
esac
"""
APT = """#!/usr/bin/env bash
here=$(dirname "$0")
while [ "$1" != install ] && [ "$1" != update ]; do shift; done
echo "apt-get $*" >> "$here/../log"
if [ "$1" = update ]; then [ -e "$here/../online" ] && touch "$here/../lists"; exit; fi
shift 2
for name in "$@"; do [ -e "$here/../packages/$name" ] && [ -e "$here/../lists" ] || exit 100; done
for name in "$@"; do cp "$here/../program" "$here/$(cat "$here/../packages/$name")"; done
"""
pytestmark = [needs.unless(SCRIPT.is_file(), needs.EXAMPLES), *map(needs.on_path, SHELL)]


class Machine:
    """Its programs are in ``bin``, what it may install in ``packages``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        for name in ("bin", "packages", ".ci"):
            (folder / name).mkdir()
        shutil.copy(SCRIPT, folder / ".ci" / "run")
        for name in SHELL:
            (self.bin / name).symlink_to(str(shutil.which(name)))
        self.script("timeout", '#!/usr/bin/env bash\nshift\n"$@"\n')
        self.script("id", "#!/usr/bin/env bash\necho 0\n")
        self.script("apt-get", APT)
        self.script("make", PROGRAM)
        (folder / "program").write_text(PROGRAM)
        (folder / "program").chmod(0o755)
        (folder / "broken").write_text("nothing")
        for package, program in PACKAGES.items():
            (folder / "packages" / package).write_text(program)

    def script(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def runs(self) -> tuple[int, list[str], str]:
        """The exit code, the calls of apt-get and make, and what was said."""
        log = self.folder / "log"
        log.write_text("")
        bash = str(self.bin / "bash")
        done = subprocess.run(
            [bash, str(self.folder / ".ci" / "run")],
            env={"PATH": str(self.bin)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.returncode, log.read_text().splitlines(), done.stdout + done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


ALL = "apt-get install --no-install-recommends " + " ".join(name for name in PACKAGES if name != "make")
COMPLETED = ["make .venv/.ci", "make vendor", "make lint test complete"]
WITHOUT = ["make .venv/.ci", "make vendor", "make lint test"]


def test_packages_come_in_one_call_and_a_complete_machine_needs_none(machine: Machine) -> None:
    (machine.folder / "lists").touch()
    code, calls, _ = machine.runs()
    assert code == 0
    assert sorted(calls[0].split()) == sorted(ALL.split())
    assert calls[1:] == COMPLETED
    code, calls, said = machine.runs()
    assert (code, calls, said) == (0, COMPLETED, "")


def test_lists_that_are_absent_are_fetched_once(machine: Machine) -> None:
    (machine.folder / "online").touch()
    code, calls, _ = machine.runs()
    assert code == 0
    assert calls[1] == "apt-get update"
    assert calls.count("apt-get update") == 1
    assert len(calls) == 2 + (len(PACKAGES) - 1) + 3
    assert calls[-3:] == COMPLETED


def test_a_package_that_is_unknown_keeps_no_other_away(machine: Machine) -> None:
    (machine.folder / "online").touch()
    (machine.folder / "packages" / "libclang-rt-dev").unlink()
    code, calls, said = machine.runs()
    assert (code, calls[-3:]) == (0, WITHOUT)
    assert "libclang-rt-dev cannot be installed" in said
    assert "this machine has no libclang-rt-dev: tests" in said


def test_without_a_network_it_says_so_and_goes_on(machine: Machine) -> None:
    code, calls, said = machine.runs()
    assert (code, calls[1:]) == (0, ["apt-get update", *WITHOUT])
    assert "lists cannot be fetched" in said
    assert "this machine has no chromium chromium-driver gcc-arm-none-eabi" in said


@pytest.mark.parametrize("why", ["no root", "no apt-get"])
def test_what_may_not_be_installed_is_left(why: str, machine: Machine) -> None:
    if why == "no root":
        machine.script("id", "#!/usr/bin/env bash\necho 1000\n")
    else:
        (machine.bin / "apt-get").unlink()
    code, calls, said = machine.runs()
    assert (code, calls) == (0, WITHOUT)
    assert "packages cannot be installed" in said


@pytest.mark.parametrize(("goal", "words"), [(".venv/.ci", "triton"), ("vendor", "onnxruntime-web")])
def test_what_pip_and_npm_cannot_fetch_is_named(goal: str, words: str, machine: Machine) -> None:
    (machine.folder / "lists").touch()
    (machine.folder / "broken").write_text(goal)
    code, calls, said = machine.runs()
    assert (code, calls[1:]) == (0, WITHOUT)
    assert words in said


def test_tests_that_fail_fail_it(machine: Machine) -> None:
    (machine.folder / "lists").touch()
    (machine.folder / "broken").write_text("lint test")
    assert machine.runs()[0] != 0
