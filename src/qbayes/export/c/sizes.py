"""Flash and memory of a network in C, against the limits of a board; refusals name the layer to blame.

Constants and the arena are counted exactly. Code and stack depend on the compiler: what is added for them
covers every network of our tests at -Os and -O2 on a Cortex-M4.
"""

import re
from dataclasses import dataclass

from qbayes.errors import BadInput
from qbayes.export.c.plan import live
from qbayes.export.c.source import Network

CODE_BYTES = 12 * 1024
STACK_BYTES = 2048
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True)
class Size:
    """Bytes of flash and of RAM, with the part that is exact."""

    constants: int
    arena: int

    @property
    def flash(self) -> int:
        return self.constants + CODE_BYTES

    @property
    def ram(self) -> int:
        return self.arena + STACK_BYTES


def parse_bytes(option: str, text: str) -> int:
    """``256k`` → 262,144; k, M and G are powers of 1024."""
    found = re.fullmatch(r"\s*(\d{1,12})\s*([kKmMgG]?)(?:i?[bB])?\s*", text)
    if found is None or int(found[1]) == 0:
        raise BadInput(f"{option} must be a number of bytes above 0", f"'{text}'", "write 256k, 1M or 65536")
    return int(found[1]) * _UNITS[found[2].lower()]


def size_of(network: Network) -> Size:
    return Size(network.constant_bytes, network.arena_bytes)


def check_flash(network: Network, limit: int | None) -> None:
    """Raise where the constants and the code take more than ``limit`` bytes."""
    size = size_of(network)
    if limit is None or size.flash <= limit:
        return
    most, owner = max((network.data.bytes[op.name], op.name) for op in network.steps.order)
    members = len(network.program.members)
    raise BadInput(
        f"the network must fit {limit:,} bytes of flash",
        f"{size.flash:,}: {size.constants:,} of constants and {CODE_BYTES:,} for code; the layer '{owner}' "
        f"alone takes {most:,}" + (f" in {members} members" if members > 1 else ""),
        "quantise to fewer bits, make that layer smaller"
        + (", keep fewer members" if members > 1 else "")
        + ", or raise --flash",
    )


def check_ram(network: Network, limit: int | None) -> None:
    """Raise where the arena and the stack take more than ``limit`` bytes."""
    size = size_of(network)
    if limit is None or size.ram <= limit:
        return
    at = worst_step(network)
    op = network.steps.order[at]
    wanted = live(network.needs, at)
    raise BadInput(
        f"the network must fit {limit:,} bytes of RAM",
        f"{size.ram:,}: {size.arena:,} of arena and {STACK_BYTES:,} for the stack; the layer '{op.name}' "
        f"needs {wanted:,} at once",
        "make that layer's input or output smaller (pool earlier, fewer channels), or raise --ram",
    )


def worst_step(network: Network) -> int:
    """The op that needs the most memory at once."""
    return max(range(len(network.steps.order)), key=lambda at: live(network.needs, at))


def table(network: Network) -> list[str]:
    """Flash and memory op by op, one line each."""
    width = max(len(op.name) for op in network.steps.order)
    lines = [f"{'layer':{width}}  {'flash':>9}  {'RAM':>9}"]
    for at, op in enumerate(network.steps.order):
        flash, ram = network.data.bytes[op.name], live(network.needs, at)
        lines.append(f"{op.name:{width}}  {flash:>9,}  {ram:>9,}")
    return lines
