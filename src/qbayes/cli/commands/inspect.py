"""``qbayes inspect``: what a program is made of and what it costs, as a table or a drawing."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from qbayes.cli import options
from qbayes.cli.console import note, out, plain_table, plural, print_json
from qbayes.cli.inputs import bits_label, check_new_file, open_program

if TYPE_CHECKING:
    from qbayes import Program
    from qbayes.integer.proof.verify import Proof
    from qbayes.integer.structure.cost import Cost

_TEXTS = 3  # columns from the left that are words
_TABLE_WIDTH = 160
_GRIDS = {
    0: "μ and noise mixed on one affine grid",
    1: "noise on the grid of μ",
    2: "noise on a grid and in a sum of its own",
}


def inspect(
    model: Annotated[
        Path, Argument(metavar="MODEL", help="A .qbayes file, or the folder of a quantised posterior.")
    ],
    graph: Annotated[Path | None, Option(help="File for a drawing: graph.svg.")] = None,
    network: options.OwnNetwork = None,
    overwrite: options.OverwriteFile = False,
    as_json: options.AsJson = False,
) -> None:
    """Show the layers of a program: bits, bytes, MACs and bit-operations, and where its noise comes from.

    runs: once for all draws of a member, or every draw. sum: bits of the largest sum, proven to fit 32.
    Var/σ²: the share of a Gaussian layer's variance that its integer weights keep.

    \b
    Examples:
      qbayes inspect mcd.qbayes
      qbayes inspect runs/mcd-w4a4 --graph mcd.svg
    """
    from qbayes.lab.report.drawing.graph import graph_svg
    from qbayes.posterior.storage.save import write_atomically

    if graph is not None:
        check_new_file(graph, (".svg",), overwrite=overwrite)
    program = open_program(model, network)
    if graph is not None:
        write_atomically(graph, graph_svg(program).encode())
        note(f"drawing in {graph}")
    found = Inspected.of(program)
    if as_json:
        print_json({"model": str(model), **found.to_json()})
    else:
        _print_program(found)


@dataclass(frozen=True)
class Inspected:
    """A program with its cost and the proof that it is right."""

    program: "Program"
    cost: "Cost"
    proof: "Proof"

    @classmethod
    def of(cls, program: "Program") -> "Inspected":
        from qbayes.integer.proof.verify import verify
        from qbayes.integer.structure.cost import cost

        return cls(program, cost(program), verify(program))

    @property
    def totals(self) -> dict[str, int]:
        once = [op for op in self.cost.ops if op.once]
        draw = [op for op in self.cost.ops if not op.once]
        return {
            "weights": self.cost.weights,
            "bytes": self.cost.bytes,
            "macs_once": sum(op.macs for op in once),
            "macs_per_draw": sum(op.macs for op in draw),
            "bit_operations_once": sum(op.bit_operations for op in once),
            "bit_operations_per_draw": sum(op.bit_operations for op in draw),
        }

    def to_json(self) -> dict[str, Any]:
        """Everything that the table shows, for machines."""
        program = self.program
        proofs = zip(self.cost.ops, self.proof.ops, strict=True)
        return {
            "task": program.signature.task,
            "precision": dict(program.precision),
            "members": self.cost.members,
            "input": asdict(program.values[program.input]),
            "outputs": {head: asdict(program.values[name]) for head, name in program.outputs.items()},
            "constant_heads": sorted(program.constant_heads),
            "ops": [{**asdict(op), "sum_bits": proof.accumulator_bits} for op, proof in proofs],
            "sites": sites(program),
            "totals": self.totals,
        }


def sites(program: "Program") -> list[dict[str, Any]]:
    """Where noise comes in: masks with their rates, Gaussian weights with their biases."""
    from qbayes.integer.ops import Mask, Weighted

    found: list[dict[str, Any]] = []
    for op in program.ops:
        if isinstance(op, Mask):
            rate = {"rate": op.rate, "channelwise": op.channelwise}
            found.append({"site": op.site, "kind": "mask", "op": op.name, **rate})
        elif isinstance(op, Weighted) and op.weights.is_gaussian:
            noise = {"noise_bits": op.weights.noise_bits, "grids": op.weights.grids}
            found.append({"site": op.weights.site, "kind": "gaussian", "op": op.name, **noise})
            if op.weights.bias_site is not None:
                found.append({"site": op.weights.bias_site, "kind": "gaussian bias", "op": op.name})
    return found


def _print_program(found: Inspected) -> None:
    from qbayes.integer.describe import COLUMNS, table

    program, console = found.program, out()
    first = program.values[program.input]
    heads = ", ".join(head or "logits" for head in (*program.outputs, *program.constant_heads))
    members = plural(found.cost.members, "member")
    console.print(
        f"{program.signature.task} at {bits_label(program.precision)}: "
        f"{'×'.join(map(str, first.shape))} at {first.bits} bits → {heads}; {members}"
    )
    rows = plain_table(COLUMNS, table(program, found.cost), right=COLUMNS[_TEXTS:], whole=COLUMNS)
    # whole, even where the terminal is narrower: half a column of numbers says nothing.
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(rows)
    lines = [_site(site) for site in sites(program)]
    none = ["noise    none: a member gives the same answer in every draw"]
    console.print("\n".join([*_totals(found.totals), *(lines or none)]))


def _totals(totals: dict[str, int]) -> list[str]:
    lines = [f"in all   {totals['weights']:,} weights a member, {totals['bytes']:,} bytes of constants"]
    for key, words in (("once", "once a member"), ("per_draw", "every draw")):
        macs, operations = totals[f"macs_{key}"], totals[f"bit_operations_{key}"]
        lines.append(f"a row    {words}: {macs:,} MACs, {operations:,} bit-operations")
    return lines


def _site(site: dict[str, Any]) -> str:
    detail = "ε of the bias"
    if site["kind"] == "mask":
        detail = f"rate {site['rate']:g}" + (" by channel" if site["channelwise"] else "")
    elif site["kind"] == "gaussian":
        detail = f"ε of {site['noise_bits']} bits, {_GRIDS[site['grids']]}"
    return f"site {site['site']:<3} {site['kind']:13} {site['op']}: {detail}"
