"""What a network costs at any assignment of bits, from its programs at equal ones.

    bytes = Σ_l B_l(w_l) + rest,     bit-operations = Σ_l MAC_l(w_l) · w_l · a_l

``B_l`` are the packed constants of layer l with weights of ``w_l`` bits, ``a_l`` the bits of the activation
that it reads. Gaussian weights on a coarse grid have a second accumulator (``qbayes.quant.layers.gaussian``),
so that the multiply-accumulates depend on the bits as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from qbayes.integer.ops import Weighted
from qbayes.integer.program import Program
from qbayes.integer.structure.cost import cost
from qbayes.quant.mixed.places import ACTIVATION, WEIGHT, Place, layer_of

Bits = Mapping[Place, int]
KINDS = ("bytes", "bit_operations")


@dataclass(frozen=True)
class Call:
    """One call of a weighted layer: its costs at each width, and what it reads.

    ``weight`` are the bits that the layer has at that width: others where an override says so. ``source`` is
    the layer whose activation it reads (None: the network's input); ``given`` are the bits of that activation
    where no place has them.
    """

    layer: str
    bytes: Mapping[int, int]
    macs: Mapping[int, int]
    weight: Mapping[int, int]
    source: str | None
    given: int


@dataclass(frozen=True)
class NetworkCosts:
    """The weighted calls of a network, the bytes of all else, and how many members there are.

    ``passing`` are the bytes of ops that are not there at every width, by the layer whose bits decide.
    """

    calls: tuple[Call, ...]
    rest: int
    members: int
    passing: tuple[tuple[str, Mapping[int, int]], ...] = ()

    def total(self, bits: Bits) -> dict[str, float]:
        """Bytes of all members, and bit-operations of a row and draw."""
        held, done = float(self.rest), 0.0
        for call in self.calls:
            width = bits.get(Place(WEIGHT, call.layer), max(call.bytes))
            read = bits.get(Place(ACTIVATION, call.source or ""), call.given)
            held += call.bytes[width]
            done += call.macs[width] * call.weight[width] * read
        for layer, by_width in self.passing:
            held += by_width[bits.get(Place(ACTIVATION, layer), max(by_width))]
        return {"bytes": self.members * held, "bit_operations": done}


def network_costs(
    programs: Mapping[int, Program], sources: Mapping[str, str | None], members: int
) -> NetworkCosts:
    """From the program of one member at each width; ``sources`` as ``places.sources`` gives them."""
    by_width = {
        width: {op.name: op for op in cost(program, variance=False).ops}
        for width, program in programs.items()
    }
    widest = programs[max(programs)]
    calls = tuple(
        Call(
            layer_of(op.name),
            {width: ops[op.name].bytes for width, ops in by_width.items()},
            {width: ops[op.name].macs for width, ops in by_width.items()},
            {width: ops[op.name].weight_bits[0] for width, ops in by_width.items()},
            sources[op.name],
            widest.values[op.inputs[0]].bits,
        )
        for op in widest.ops
        if isinstance(op, Weighted)
    )
    weighted = {op.name for op in widest.ops if isinstance(op, Weighted)}
    # tables of functions are the longer the more bits they are read by: this is the most.
    rest = sum(op.bytes for name, op in by_width[max(programs)].items() if name not in weighted)
    gone = dict.fromkeys(
        name for ops in by_width.values() for name in ops if name not in by_width[max(programs)]
    )
    passing = tuple(
        (layer_of(name), {width: ops[name].bytes if name in ops else 0 for width, ops in by_width.items()})
        for name in gone
    )
    return NetworkCosts(calls, rest, members, passing)
