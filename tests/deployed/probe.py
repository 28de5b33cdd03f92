"""An exported graph with every value of the program as an output, compared op by op with the reference.

What each op read and wrote in the runtime becomes a record; the reference is fed the same codes.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from qbayes.export.onnx.noise import ROWS, noise_sites
from qbayes.export.onnx.program_draws import MemberDraws
from qbayes.export.onnx.run import noise_feeds
from qbayes.integer.compare import OpDistance, Seen, distances, replay
from qbayes.integer.onnx.dialect import dialect_of
from qbayes.integer.onnx.graph import Graph
from qbayes.integer.onnx.op_context import dtype_of_codes
from qbayes.integer.onnx.runtimes import open_model
from qbayes.integer.ops import Noise
from qbayes.integer.program import Program

DIALECT_OF = {"onnxruntime": "qoperator", "openvino": "qdq"}


def probed_model(program: Program, member: int, dialect: str, *, inside: bool = False) -> bytes:
    """One draw of one member with all values as outputs, called like the program calls them."""
    g, sites = Graph(), noise_sites(program)
    x = g.input("x", np.float32, (ROWS, *program.signature.input_shape))
    given = None if inside else {s.site: g.input(s.name, s.dtype, s.axes(1)) for s in sites.values()}
    maker = MemberDraws(program, program.members[member], dialect_of(dialect), 1, sites, given)
    values = maker.values_of_draw(g, x)
    for name, tensor in values.items():
        value = program.values[name]
        g.output(tensor, f"value:{name}", dtype_of_codes(value.bits), (ROWS, *value.shape))
    return g.model("probe").SerializeToString()


def run_model(model: bytes, runtime: str, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All outputs of a model at one thread, with the runtime's default optimisation."""
    return open_model(model, runtime, _outputs(model), 1)(feeds)


def _outputs(model: bytes) -> set[str]:
    import onnx

    return {value.name for value in onnx.load_model_from_string(model).graph.output}


def graph_distances(program: Program, runtime: str, x: Tensor, draws: int, seed: int) -> list[OpDistance]:
    """Every op of the exported graph in the runtime against the reference, fed the runtime's own codes."""
    record: dict[str, list[Seen]] = {}
    for draw in range(draws):
        member = draw % len(program.members)
        model = probed_model(program, member, DIALECT_OF[runtime])
        feeds = {"x": x.float().numpy(), **noise_feeds(program, len(x), [draw], seed)}
        found = run_model(model, runtime, feeds)
        values = {name: torch.from_numpy(found[f"value:{name}"]) for name in program.values}
        noise = Noise(seed, torch.tensor([draw]), 0, len(x))
        for op in program.ops:
            inputs = tuple(values[name] for name in op.inputs)
            record.setdefault(op.name, []).append(Seen(inputs, values[op.output], noise, member))
    return distances(program, record, replay(program, "reference", record))
