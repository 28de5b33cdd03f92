"""``qbayes lower``: from a quantised posterior to one file that runs on integers."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from qbayes.cli import options
from qbayes.cli.commands.inspect import Inspected
from qbayes.cli.console import out, plural, print_json
from qbayes.cli.inputs import PROGRAM_SUFFIX, check_new_file, is_program, open_program
from qbayes.errors import BadInput

_FLOAT32_BYTES = 4


def lower(
    posterior: Annotated[Path, Argument(metavar="DIR", help="Folder that 'qbayes quantize' wrote.")],
    out_file: Annotated[Path, Option("--out", help="File for the program: model.qbayes.")],
    network: options.OwnNetwork = None,
    overwrite: options.OverwriteFile = False,
    as_json: options.AsJson = False,
) -> None:
    """Turn a quantised posterior into a program: one small file that runs on integers alone.

    The program is proven right before it is written: sums fit 32 bits, products 64, codes their grids.

    \b
    Examples:
      qbayes lower runs/mcd-w4a4 --out mcd.qbayes
    """
    check_new_file(out_file, (PROGRAM_SUFFIX,), overwrite=overwrite)
    if is_program(posterior):
        raise BadInput(
            "a quantised posterior is needed", f"the file {posterior}", "give the folder of 'qbayes quantize'"
        )
    program = open_program(posterior, network)
    program.save(out_file)
    made = Made(out_file, Inspected.of(program))
    if as_json:
        print_json(made.to_json())
    else:
        out().print(made.summary())


@dataclass(frozen=True)
class Made:
    """A program in its file, what it costs and what was proven."""

    path: Path
    found: Inspected

    def to_json(self) -> dict[str, Any]:
        """Sizes in bytes; ``float32_bytes`` are those of one number a weight, two for a Gaussian's."""
        return {
            "program": str(self.path),
            "bytes": self.path.stat().st_size,
            "float32_bytes": self.float32_bytes,
            "members": self.found.cost.members,
            "ops": len(self.found.cost.ops),
            "proven": {
                "largest_sum_bits": self._sum_bits,
                "largest_product_bits": self._product_bits,
                "ops": len(self.found.proof.ops),
            },
            "variance_ratios": self.ratios,
        }

    @property
    def float32_bytes(self) -> int:
        numbers = sum(op.weights * len(op.weight_bits) for op in self.found.cost.ops)
        return _FLOAT32_BYTES * numbers * self.found.cost.members

    @property
    def ratios(self) -> dict[str, float]:
        return {op.name: op.variance_ratio for op in self.found.cost.ops if op.variance_ratio is not None}

    @property
    def _sum_bits(self) -> int:
        return max((op.accumulator_bits for op in self.found.proof.ops), default=0)

    @property
    def _product_bits(self) -> int:
        return max((op.product for op in self.found.proof.ops), default=0).bit_length() + 1

    def summary(self) -> str:
        size = self.path.stat().st_size
        share = size / self.float32_bytes if self.float32_bytes else 1.0
        lines = [
            f"{self.path}: {size:,} bytes, {100 * share:.1f} % of the weights in float32; "
            f"{len(self.found.cost.ops)} ops, {plural(self.found.cost.members, 'member')}",
            f"proven: no float between input and output codes; sums take {self._sum_bits} of 32 bits, "
            f"products {self._product_bits} of 64; every code stays on its grid",
        ]
        if self.ratios:
            low, high = min(self.ratios.values()), max(self.ratios.values())
            lines.append(f"variance kept: Var(w_q S_w) / σ² from {low:.3f} to {high:.3f}, by layer")
            width = max(map(len, self.ratios))
            lines += [f"  {name:{width}}  {ratio:.3f}" for name, ratio in self.ratios.items()]
        quoted = shlex.quote(str(self.path))
        return "\n".join([*lines, f"next: qbayes evaluate {quoted}, or qbayes inspect {quoted}"])
