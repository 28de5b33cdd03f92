"""``qbayes export --target c``: a folder with the network as C, its runtime, a Makefile and a self-test."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from qbayes.export.base import TARGETS, Target, Written, check_folder, flag, kinds, require_ops, write_folder
from qbayes.export.c import header, selftest, sizes
from qbayes.export.c.data import DEFAULT, check_name, rename_prefix
from qbayes.export.c.emitters import EMITTERS
from qbayes.export.c.source import Network, network_of
from qbayes.integer.program import Program

_GENERATOR = Path(header.__file__).parent
RUNTIME, TEMPLATES = _GENERATOR / "runtime", _GENERATOR / "templates"
# rows of weights that are held unpacked: the fewer, the less memory, and the more often inputs are gathered.
_ROWS = (4, 2, 1)
_RECORDED_ROWS, _RECORDED_DRAWS = 2, 4
_MOST_RECORDED = 20_000  # numbers in the self-test: large inputs are recorded once


@TARGETS.register("c")
@dataclass(frozen=True)
class CTarget(Target):
    """Plain C99 for small devices.

    Attributes:
        name: What the names of files and functions begin with.
        flash: The most flash, such as ``256k``; None, no limit, by default.
        ram: The most RAM, such as ``64k``; None, no limit, by default. Where it is tight, fewer rows of
            weights are unpacked at once, which is slower.
    """

    summary: ClassVar[str] = "plain C99 for small devices, bit for bit the reference's answers"

    name: str = flag(DEFAULT, "prefix of every function and file.")
    flash: str | None = flag(None, "most flash that it may take, such as 256k.")
    ram: str | None = flag(None, "most RAM that it may take, such as 64k.")

    @classmethod
    def ops(cls) -> frozenset[str]:
        return kinds(EMITTERS)

    def write(self, program: Program, place: Path, *, overwrite: bool = False) -> Written:
        check_name(self.name)
        network = self.network(program)
        check_folder(place, overwrite=overwrite)
        files = self.files(network)
        written = write_folder(place, {name: text.encode() for name, text in files.items()})
        size = sizes.size_of(network)
        facts = {
            "target": "c",
            "folder": str(place),
            "files": sorted(files),
            "constant_bytes": size.constants,
            "arena_bytes": size.arena,
            "flash_bytes": size.flash,
            "ram_bytes": size.ram,
            "members": len(program.members),
        }
        return Written(written, facts, tuple(_summary(self.name, place, network)))

    def network(self, program: Program) -> Network:
        """The program within the limits: rows of weights are unpacked by fewer at once where RAM is short."""
        require_ops(program, "c", EMITTERS)
        flash = None if self.flash is None else sizes.parse_bytes("--flash", self.flash)
        ram = None if self.ram is None else sizes.parse_bytes("--ram", self.ram)
        network = network_of(program, _ROWS[0])
        for rows in _ROWS[1:]:
            if ram is None or sizes.size_of(network).ram <= ram:
                break
            network = network_of(program, rows)
        sizes.check_flash(network, flash)
        sizes.check_ram(network, ram)
        return network

    def files(self, network: Network) -> Mapping[str, str]:
        """The text of every file by its name."""
        templates = {path.name: path.read_text(encoding="utf-8") for path in TEMPLATES.iterdir()}
        templates["network.h"] = header.fill_template(templates["network.h"], network)
        templates["network_data.h"] = header.write_guarded(
            "network_data.h", header.settings(network), network.text
        )
        recorded = selftest.record(network.program, _rows(network), _RECORDED_DRAWS)
        tests = selftest.test_data(network, recorded)
        templates["network_test_data.h"] = header.write_guarded(
            "network_test_data.h", '#include "network.h"', tests
        )
        made = {
            rename_prefix(name, self.name): rename_prefix(text, self.name) for name, text in templates.items()
        }
        runtime = {path.name: path.read_text(encoding="utf-8") for path in sorted(RUNTIME.glob("*.h"))}
        return {**made, **runtime}


def _rows(network: Network) -> int:
    program = network.program
    inputs = len(network.grids) * header.count(program.values[program.input].shape)
    return _RECORDED_ROWS if inputs * _RECORDED_ROWS <= _MOST_RECORDED else 1


def _summary(name: str, place: Path, network: Network) -> list[str]:
    size = sizes.size_of(network)
    return [
        *sizes.table(network),
        f"{place}: {size.constants:,} bytes of constants in flash, {size.arena:,} of RAM; with about "
        f"{sizes.CODE_BYTES:,} of code and {sizes.STACK_BYTES:,} of stack: {size.flash:,} and {size.ram:,}",
        f'next: make -C {shlex.quote(str(place))} test, then #include "{name}.h"',
    ]
