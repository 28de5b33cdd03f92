"""Flash, RAM and instructions of one draw on a Cortex-M4, with the float C of the same network beside it.

The MLP of UCI (13 features) and the paper's LeNet with ReLU (1×28×28), random weights. Integers: ``qbayes
export --target c``; float: plain loops over the same layers (``cortex_m/float_draw.c``) with the FPU, by the
same compiler at the same level. QEMU counts instructions (``-icount shift=0``); it does not know cycles.

    python benchmarks/c_cortex_m.py [--networks mlp lenet] [--optimise -O2]

The flash of libm, which float Gaussians take, is not counted. Needs arm-none-eabi-gcc with newlib and
qemu-system-arm; says so and ends where one is missing.
"""

import argparse
import json
import math
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from qbayes.export.c.layer import layer_of
from qbayes.export.targets.c import RUNTIME, CTarget
from qbayes.integer.ops import Linear, Mask, MaxPool, Op, Weighted
from qbayes.integer.program import Program
from qbayes.lab.bench.subjects import make_subject
from qbayes.noise import keep_threshold
from qbayes.quant.precision import Precision

HERE = Path(__file__).resolve().parent / "cortex_m"
BOARD = HERE.parents[1] / "examples" / "small-device"
TOOLS = ("arm-none-eabi-gcc", "qemu-system-arm")
METHODS = {"mlp": ("pointwise", "mcd", "bbb", "sghmc"), "lenet": ("pointwise", "mcd", "bbb")}
MEMBERS = 5
CPU = ("-mcpu=cortex-m4", "-mthumb", "-std=gnu99", "-ffunction-sections", "-fdata-sections")
FPU = ("-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")
QEMU = ("qemu-system-arm", "-M", "mps2-an386", "-nographic", "-icount", "shift=0")
QUIET = ("-monitor", "none", "-serial", "none", "-semihosting-config", "enable=on,target=native")


def script(folder: Path) -> Path:
    """The board's linker script with constants in the 16 MB behind its RAM: float LeNet does not fit 4."""
    text = (BOARD / "board.ld").read_text()
    text = text.replace("    ram (rwx)", "    more (rx) : ORIGIN = 0x21000000, LENGTH = 16M\n    ram (rwx)")
    text = text.replace(" *(.rodata*)", "").replace(
        "    .data :", "    .rodata : { *(.rodata*) . = ALIGN(4); } > more\n    .data :"
    )
    (folder / "board.ld").write_text(text)
    return folder / "board.ld"


def measured(folder: Path, main: Path, extra: list[str], optimise: str) -> dict[str, int]:
    """Flash and RAM of the network's part, and the instructions of a draw."""
    include = [f"-I{place}" for place in (folder, BOARD, HERE, RUNTIME)]
    flags = [*CPU, optimise, *include, *extra]
    parts = [folder / "network.c"] if (folder / "network.c").exists() else []
    object_file, elf = folder / "measured.o", folder / "measured.elf"
    measured_part = parts[0] if parts else main
    subprocess.run(["arm-none-eabi-gcc", *flags, "-c", measured_part, "-o", object_file], check=True)
    link = [
        "-nostartfiles",
        "-T",
        script(folder),
        "-Wl,--gc-sections",
        "--specs=nano.specs",
        "--specs=nosys.specs",
    ]
    sources = [main, BOARD / "board.c", *parts]
    subprocess.run(["arm-none-eabi-gcc", *flags, *sources, *link, "-lm", "-o", elf], check=True)
    listed = subprocess.run(
        ["arm-none-eabi-size", "-B", object_file], capture_output=True, text=True, check=True
    )
    text, _, bss = (int(number) for number in listed.stdout.splitlines()[1].split()[:3])
    told = subprocess.run([*QEMU, *QUIET, "-kernel", str(elf)], capture_output=True, text=True, check=True)
    return {"flash": text, "ram": bss, "instructions": int((told.stdout + told.stderr).split()[0])}


class FloatC:
    """``float_network.h``: random weights in the program's shapes, and its ops in their order."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.draw = torch.Generator().manual_seed(0)
        self.texts: list[str] = []
        self.calls: list[str] = []
        self.source = 0
        self.longest = 1
        for at, op in enumerate(program.ops):
            self._op(at, op)

    @property
    def defines(self) -> list[str]:
        widest = max(math.prod(value.shape) for value in self.program.values.values())
        return [f"-DFLOAT_VALUES={widest}", f"-DFLOAT_ROW={self.longest}"]

    @property
    def text(self) -> str:
        body = "\n".join(f"    {line}" for line in ["(void)noise;", *self.calls])
        return "\n".join([*self.texts, f"static void float_draw(const qb_noise *noise) {{\n{body}\n}}\n"])

    def _array(self, name: str, count: int) -> str:
        numbers = torch.randn(count, generator=self.draw).mul_(0.05).tolist()
        listed = ", ".join(f"{n:.6g}f" if "." in f"{n:.6g}" else f"{n:.6e}f" for n in numbers)
        self.texts.append(f"static const float {name}[{count}] = {{{listed}}};")
        return name

    def _op(self, at: int, op: Op) -> None:
        shape, target = self.program.values[op.inputs[0]].shape, 1 - self.source
        buffers = f"buffers[{self.source}], buffers[{target}]"
        if isinstance(op, Weighted):
            self._layer(at, op)
            call = "linear" if isinstance(op, Linear) else "weighted"
            self.calls.append(f"{call}(&l{at}, {buffers}, noise);")
            self.source = target
        elif isinstance(op, MaxPool):
            self.calls.append(f"max_pool({shape[0]}, {shape[1]}, {shape[2]}, {buffers});")
            self.source = target
        elif isinstance(op, Mask):
            count = shape[0] if op.channelwise else math.prod(shape)
            numbers = f"{count}, {math.prod(shape) // count}, {op.site}, {keep_threshold(op.rate)}"
            self.calls.append(f"mask(buffers[{self.source}], {numbers}, {1 / (1 - op.rate):.6f}f, noise);")

    def _layer(self, at: int, op: Weighted) -> None:
        layer, count = layer_of(self.program, op), math.prod(op.weight_shape)
        fields: dict[str, object] = {key: layer.geometry[key] for key in _KEYS}
        fields |= {"row": layer.row, "site": op.weights.site}
        fields["mean"] = self._array(f"w{at}", count * len(self.program.members))
        fields["bias"] = self._array(f"b{at}", op.weight_shape[0])
        if op.weights.is_gaussian:
            fields["sigma"] = self._array(f"s{at}", count)
            self.longest = max(self.longest, layer.row)
        fields["floor"] = "0.0f" if int(self.program.members[0].constants[op.name]["low"]) else "-3e38f"
        body = ", ".join(f".{key} = {value}" for key, value in fields.items())
        self.texts.append(f"static const layer l{at} = {{{body}}};")


_KEYS = (
    *("in_channels", "in_height", "in_width", "out_channels", "out_height", "out_width", "kernel_height"),
    *("kernel_width", "stride_height", "stride_width", "padding_height", "padding_width"),
)


def rows_of(network: str, method: str, optimise: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for bits in (8, 4):
        program = make_subject(network, method, Precision(weight=bits, activation=bits), MEMBERS).program
        for dsp in (False, True):
            with tempfile.TemporaryDirectory() as scratch:
                CTarget().write(program, Path(scratch))
                extra = ["-DQB_ARM_DSP"] if dsp else []
                numbers = measured(Path(scratch), HERE / "draw.c", extra, optimise)
            label = f"W{bits}A{bits}" + (" DSP" if dsp else "")
            found.append({"network": network, "method": method, "as": label, **numbers})
    with tempfile.TemporaryDirectory() as scratch:
        made = FloatC(program)
        (Path(scratch) / "float_network.h").write_text(made.text)
        numbers = measured(Path(scratch), HERE / "float_draw.c", [*FPU, *made.defines], optimise)
    return [*found, {"network": network, "method": method, "as": "float32", **numbers}]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--optimise", default="-O2")
    asked = parser.parse_args()
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        print(f"nothing measured: {', '.join(missing)} is not on this machine")
        return
    rows = []
    print("| network | method | as | flash, bytes | RAM, bytes | instructions a draw |")
    print("|---|---|---|--:|--:|--:|")
    for network in asked.networks:
        for method in METHODS[network]:
            for row in rows_of(network, method, asked.optimise):
                rows.append(row)
                numbers = " | ".join(f"{row[key]:,}" for key in ("flash", "ram", "instructions"))
                print(f"| {network} | {method} | {row['as']} | {numbers} |", flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
