"""Ops from outside: this file defines two, and takes them from a network to every target by itself.

``ChannelShuffle`` only moves codes. ``Magnitude`` computes: ``|x|`` on a grid of its own. Each is the class
of an integer op, a kind of nodes with its fake-quantised layer, and one emitter a target.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import needs
import qbayes as qb
from deployed.probe import graph_distances
from handmade.registries import kept_registries
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from parity.c_build import compiled, differing, needs_compiler
from qbayes.errors import BadFile, BadInput
from qbayes.export import TARGETS
from qbayes.export.c.emitters import EMITTERS, emits
from qbayes.export.c.ops import emit_move, emit_scaling
from qbayes.export.c.walk import Axis, Context
from qbayes.export.float_onnx.model import float_model
from qbayes.export.onnx import export_onnx
from qbayes.integer.arithmetic.fixed_point import rescale
from qbayes.integer.backends.base import choose
from qbayes.integer.backends.c_kernels import MAKERS, make_table, makes
from qbayes.integer.compare import compare_ops
from qbayes.integer.onnx.elementwise import write_table
from qbayes.integer.onnx.exact_rescale import Lanes
from qbayes.integer.onnx.graph import Graph
from qbayes.integer.onnx.op_context import WRITERS, writes
from qbayes.integer.onnx.op_context import Site as OpSite
from qbayes.integer.ops import (
    OPS,
    Bound,
    Constant,
    Constants,
    Grids,
    MovingOp,
    Noise,
    Op,
    Shape,
    clamp_codes,
    fields,
    register_op,
)
from qbayes.lab.report.drawing.graph import graph_svg
from qbayes.posterior.sites import Site, place_sites
from qbayes.quant.graph.capture import capture
from qbayes.quant.graph.kinds import limits_of, register_moving
from qbayes.quant.graph.nodes import LayerBuilder, Node, NodeKind, register_kind
from qbayes.quant.layers.base import (
    Coded,
    Names,
    QuantLayer,
    Requantised,
    Span,
    multiplier_constants,
    real_multiplier,
)
from qbayes.quant.layers.base import (
    Constants as LayerConstants,
)
from qbayes.quant.layers.movement import QuantMove
from qbayes.quant.network import QuantNetwork

# ---- an op that moves codes


@dataclass(frozen=True)
class ChannelShuffle(MovingOp):
    """Channels of g groups taken in turn: output channel ``j g + i`` is number j of group i."""

    kind: ClassVar[str] = "channel_shuffle"
    carries_wide: ClassVar[bool] = True

    groups: int

    def __post_init__(self) -> None:
        fields.inputs(self.name, self.inputs, 1, 1)
        fields.whole(f"{self.name}: groups", self.groups, 1)

    def out_shape(self, shapes: Sequence[Shape]) -> Shape:
        right = len(shapes[0]) >= 2 and shapes[0][0] % self.groups == 0
        fields.fits(right, self.name, f"the channels must be a multiple of {self.groups}", shapes[0])
        return shapes[0]

    def move(self, x: Tensor) -> Tensor:
        rows, channels = x.shape[:2]
        parted = x.reshape(rows, self.groups, channels // self.groups, *x.shape[2:])
        return parted.transpose(1, 2).reshape(x.shape)


def shuffle_in_c(op: ChannelShuffle, context: Context) -> list[str]:
    channels, *lengths = context.shape(op.output)
    plane, each = math.prod(lengths), channels // op.groups
    axes = [Axis(each, op.groups * plane, (plane,)), Axis(op.groups, plane, (each * plane,))]
    return emit_move(op, context, [*axes, Axis(plane, 1, (1,))])


def shuffle_in_onnx(g: Graph, lanes: Lanes, site: OpSite, inputs: Sequence[str]) -> str:
    assert isinstance(site.op, ChannelShuffle)
    channels, *lengths = site.out_shape
    groups = site.op.groups
    parted = g.node("Reshape", inputs[0], g.whole(-1, groups, channels // groups, *lengths))
    order = [0, 2, 1, *range(3, 3 + len(lengths))]
    return g.node("Reshape", g.node("Transpose", parted, perm=order), g.whole(-1, *site.out_shape))


# ---- an op that computes


@dataclass(frozen=True)
class MagnitudeOp(Op):
    """``q_o = clamp(Z_o + round(|q − Z| m / 2^s), low, high)``."""

    kind: ClassVar[str] = "magnitude"
    lanes: ClassVar[tuple[int, int]] = (0, 64)
    in_place: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fields.inputs(self.name, self.inputs, 1, 1)

    def constants(self, values: object) -> tuple[Constant, ...]:
        scaling = Constant("multiplier", (1,), 32, True), Constant("shift", (1,), 6, False)
        return *scaling, Constant("low", (1,), 8, False), Constant("high", (1,), 8, False)

    def out_shape(self, shapes: Sequence[Shape]) -> Shape:
        return shapes[0]

    def bound(self, constants: Constants, grids: Grids, shapes: Sequence[Shape]) -> Bound:
        return Bound(0, grids.reaches[0] * int(constants["multiplier"].long().abs().max()))

    def run(self, inputs: Sequence[Tensor], grids: Grids, constants: Constants, noise: Noise) -> Tensor:
        far = (inputs[0].long() - grids.zeros[0]).abs()
        return clamp_codes(grids.zero + rescale(far, constants["multiplier"], constants["shift"]), constants)


class Magnitude(nn.Module):
    """What a user's network has: nothing that tracing would know as one step."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(x, -x)


class QuantMagnitude(Requantised):
    """Its fake-quantised layer."""

    def simulate(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.finish(x.abs())

    def unit(self, *spans: Span) -> Tensor:
        return spans[0][1].double()

    def constants(self, x: Coded) -> LayerConstants:  # pyright: ignore[reportIncompatibleMethodOverride]
        scale, _ = self.out.grid()
        return multiplier_constants(x.scale.double() / scale.double()) | self.clamp_constants()

    def compute(self, x: Coded) -> Coded:  # pyright: ignore[reportIncompatibleMethodOverride]
        constants = self.constants(x)
        steps = x.offsets.double().abs() * real_multiplier(constants, x.codes.ndim)
        return self.to_codes(steps, constants)

    def lower(self, names: Names) -> Op:
        return MagnitudeOp(*names)


def make_magnitude(builder: LayerBuilder, node: Node) -> QuantLayer:
    return QuantMagnitude(builder.out(node), limits_of(node))


def magnitude_in_c(op: MagnitudeOp, context: Context) -> list[str]:
    numbers, count = emit_scaling(context, op, context.name), math.prod(context.shape(op.output))
    return [
        f"const qb_scaling *numbers = {numbers};",
        f"const uint8_t *in = {context.place(op.inputs[0])};",
        f"uint8_t *out = {context.place(op.output)};",
        "uint32_t i;",
        f"for (i = 0u; i < {count}u; i++) {{",
        "    int64_t far = (int64_t)in[i] - numbers->zeros[0];",
        "    int64_t total = (far < 0 ? -far : far) * numbers->multipliers[0];",
        "    out[i] = (uint8_t)qb_requantised(total, numbers->shift, numbers->zero_out, numbers->low,",
        "                                     numbers->high);",
        "}",
    ]


# ---- what makes them known


def register_ops() -> None:
    register_op(ChannelShuffle)
    register_op(MagnitudeOp)


def register_nodes() -> None:
    register_moving(ChannelShuffle)
    register_kind(NodeKind("magnitude", make_magnitude, takes_limits=True))
    capture(nn.ChannelShuffle, "channel_shuffle", lambda layer: {"groups": layer.groups})
    capture(torch.channel_shuffle, "channel_shuffle", lambda groups: {"groups": groups})
    capture(Magnitude, "magnitude")


def register_emitters() -> None:
    emits(ChannelShuffle)(shuffle_in_c)
    emits(MagnitudeOp)(magnitude_in_c)
    writes(ChannelShuffle)(shuffle_in_onnx)
    writes(MagnitudeOp)(write_table)
    makes(MagnitudeOp)(make_table)


@pytest.fixture
def unregistered() -> Iterator[None]:
    """All registries are afterwards as they were."""
    with kept_registries():
        yield


@pytest.fixture
def registered(unregistered: None) -> None:
    register_ops()
    register_nodes()
    register_emitters()


class Network(nn.Module):
    """Convolutions in groups with a shuffle between them, spelled in both ways, and magnitudes."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(2, 8, 3, padding=1)
        self.shuffle = nn.ChannelShuffle(2)
        self.two = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.magnitude = Magnitude()
        self.three = nn.Conv2d(8, 6, 1)
        self.last = Magnitude()
        self.head = nn.Linear(6 * 25, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.shuffle(F.relu(self.one(x)))
        x = torch.channel_shuffle(self.magnitude(self.two(x)), 4)
        return self.head(self.last(self.three(x)).flatten(1))


def rows(count: int = 40) -> Tensor:
    return 2 * torch.randn(count, 2, 5, 5, generator=torch.Generator().manual_seed(3))


def task() -> qb.Task:
    x, y = rows(), torch.arange(40) % 3
    return qb.Task.from_arrays(x, y, x, y, kind="classification", name="shuffled")


SITES: dict[str, list[Site]] = {
    "pointwise": [],
    "masks": [Site(0, "mask", "shuffle", "after", 0.25)],
    "gaussians": [Site(0, "gaussian", "two", "replace", sigma=0.1)],
}


def float_posterior(sites: str = "masks", network: Callable[[], nn.Module] = Network) -> qb.NetworkPosterior:
    torch.manual_seed(5)
    made = network()
    placed = place_sites(made, SITES[sites]) if SITES[sites] else made
    return qb.Posterior.from_trained(placed.eval(), task().signature)


def quantised(precision: qb.Precision, sites: str = "masks", epochs: int = 0) -> qb.NetworkPosterior:
    finetuning = qb.FineTuning(epochs=epochs, batch_size=16, learning_rate=1e-3)
    return qb.quantize(float_posterior(sites), task(), precision, finetuning, device="cpu", progress=False)


W8A4 = qb.Precision(8, 4)
CASES = [(W8A4, "masks"), (qb.Precision(), "pointwise"), (qb.Precision(3, 3), "gaussians")]


def program_of(precision: qb.Precision = W8A4, sites: str = "masks") -> qb.Program:
    return qb.lower(quantised(precision, sites))


# ---- from the network to integers


def test_the_layer_that_moves_has_no_quantiser_and_the_one_that_computes_has(registered: None) -> None:
    network = quantised(W8A4).network
    assert isinstance(network, QuantNetwork)
    shuffles = [layer for layer in network.layers.values() if isinstance(layer, QuantMove)]
    magnitudes = [layer for layer in network.layers.values() if isinstance(layer, QuantMagnitude)]
    # ours, and the network's own flatten.
    assert [layer.op.kind for layer in shuffles] == ["channel_shuffle", "channel_shuffle", "reshape"]
    assert not any(list(layer.parameters()) or list(layer.buffers()) for layer in shuffles)
    assert [layer.out.bits for layer in magnitudes] == [4, 4]


def test_bits_are_those_of_the_reader_behind_the_shuffle(registered: None) -> None:
    """Convolutions multiply what a shuffle hands them: 4 bits. A magnitude multiplies nothing: it reads 8."""
    values = program_of(sites="pointwise").values
    assert {name: value.bits for name, value in values.items() if name != "input"} == {
        "one": 4,
        "shuffle": 4,
        "two": 8,
        "magnitude": 4,
        "channel_shuffle": 4,
        "three": 8,
        "last": 4,
        "flatten": 4,
        "head": W8A4.output_bits if W8A4.output_bits else 8,
    }


def test_a_relu_is_folded_into_what_can_take_it_in(registered: None) -> None:
    made = nn.Sequential(nn.Conv2d(2, 4, 1), Magnitude(), nn.ReLU6(), nn.Flatten(), nn.Linear(100, 3))
    posterior = qb.Posterior.from_trained(made.eval(), task().signature)
    finetuning = qb.FineTuning(epochs=0, batch_size=16)
    program = qb.lower(qb.quantize(posterior, task(), W8A4, finetuning, device="cpu", progress=False))
    assert [op.kind for op in program.ops] == ["conv", "magnitude", "reshape", "linear"]


@pytest.mark.parametrize(("precision", "sites"), CASES)
def test_the_program_gives_the_codes_of_the_fake_quantised_network(
    registered: None, precision: qb.Precision, sites: str
) -> None:
    posterior = quantised(precision, sites, epochs=1)
    program = qb.lower(posterior)
    deployed = qb.load(program, "reference")
    ours, theirs = (one.predict(rows(), 3, 7).draws for one in (posterior, deployed))
    assert torch.equal(ours, theirs)


def test_the_moved_codes_are_torchs_own_shuffle(registered: None) -> None:
    x = torch.randint(0, 16, (3, 12, 4, 5), dtype=torch.uint8)
    op = ChannelShuffle("y", ("x",), "y", groups=3)
    assert torch.equal(op.move(x), torch.channel_shuffle(x.float(), 3).to(torch.uint8))


# ---- to backends and targets


@pytest.mark.parametrize(("precision", "sites"), CASES)
@pytest.mark.parametrize("backend", ["onednn", "onnxruntime", "openvino"])
def test_backends_give_the_references_codes(
    registered: None, backend: str, precision: qb.Precision, sites: str
) -> None:
    if backend != "onednn":
        needs.package(backend)
    found = compare_ops(program_of(precision, sites), "reference", backend, rows(), draws=2)
    assert {row.op: row.largest for row in found if row.kind in ("channel_shuffle", "magnitude")} == {
        "shuffle": 0,
        "magnitude": 0,
        "channel_shuffle": 0,
        "last": 0,
    }
    assert max(row.largest for row in found) <= 1


@needs_compiler
@pytest.mark.parametrize(("precision", "sites"), CASES)
def test_exported_c_gives_the_references_bits(registered: None, precision: qb.Precision, sites: str) -> None:
    assert not differing(compiled(program_of(precision, sites)), rows(4))


@pytest.mark.parametrize(("precision", "sites"), CASES)
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_exported_onnx_gives_the_references_codes(
    registered: None, runtime: str, precision: qb.Precision, sites: str
) -> None:
    needs.package(runtime)
    found = graph_distances(program_of(precision, sites), runtime, rows(), draws=2, seed=0)
    assert all(row.largest == 0 for row in found if row.kind in ("channel_shuffle", "magnitude"))
    assert max(row.largest for row in found) <= 1


@needs_compiler
def test_codes_wider_than_a_byte_go_through(registered: None) -> None:
    """A shuffle of the input's 16 bits, which the convolution behind it reads."""
    made = nn.Sequential(nn.ChannelShuffle(2), nn.Conv2d(2, 4, 1), nn.Flatten(), nn.Linear(100, 3))
    posterior = qb.Posterior.from_trained(made.eval(), task().signature)
    precision, finetuning = qb.Precision(8, 8, input=16), qb.FineTuning(epochs=0, batch_size=16)
    program = qb.lower(qb.quantize(posterior, task(), precision, finetuning, device="cpu", progress=False))
    assert [program.values[name].bits for name in ("input", "0", "1")] == [16, 16, 8]
    assert not differing(compiled(program), rows(4))
    for runtime in ("onnxruntime", "openvino"):
        needs.package(runtime)
        found = graph_distances(program, runtime, rows(), draws=1, seed=0)
        assert max(row.largest for row in found[:2]) == 0


def test_a_file_a_table_and_a_drawing_have_them(registered: None, tmp_path: Path) -> None:
    program = program_of()
    assert qb.Program.open(program.save(tmp_path / "p.qbayes")).equals(program)
    assert "channel_shuffle" in str(program)
    drawn = graph_svg(program)
    assert "channel shuffle → 8×5×5" in drawn
    assert ">magnitude<" in drawn


# ---- what is refused


def test_an_op_without_a_bound_cannot_be_made_or_registered(unregistered: None) -> None:
    @dataclass(frozen=True)
    class Boundless(Op):
        kind: ClassVar[str] = "boundless"

        def out_shape(self, shapes: Sequence[Shape]) -> Shape:
            return shapes[0]

        def run(self, inputs: Sequence[Tensor], grids: Grids, constants: Constants, noise: Noise) -> Tensor:
            return inputs[0]

    with pytest.raises(TypeError, match="bound"):
        Boundless("y", ("x",), "y")  # pyright: ignore[reportAbstractUsage]
    with pytest.raises(BadInput, match="all that a proof needs") as caught:
        register_op(Boundless)
    assert caught.value.got == "Boundless without bound, lanes"
    assert "boundless" not in OPS


def test_two_ops_of_one_kind_are_refused(unregistered: None) -> None:
    register_op(ChannelShuffle)
    register_op(ChannelShuffle)  # again is no other

    @dataclass(frozen=True)
    class Other(ChannelShuffle):
        pass

    with pytest.raises(BadInput, match="different kinds"):
        register_op(Other)
    with pytest.raises(BadInput, match="different names"):
        register_kind(NodeKind("add", None))
    capture(Magnitude, "magnitude")
    with pytest.raises(BadInput, match="one kind of nodes"):
        capture(Magnitude, "add")


def test_a_bound_is_what_the_proof_goes_by(registered: None, monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of()
    monkeypatch.setattr(MagnitudeOp, "bound", lambda self, *more: Bound(1 << 31, 0))
    with pytest.raises(BadInput, match="the sums of 'magnitude' must fit int32"):
        qb.lower(quantised(W8A4))
    monkeypatch.setattr(MagnitudeOp, "bound", lambda self, *more: Bound(0, 1 << 62))
    with pytest.raises(BadInput, match="must stay below 2\\^62"):
        program.save("nowhere.qbayes")


def test_a_program_with_an_op_that_is_not_registered_is_refused(registered: None, tmp_path: Path) -> None:
    program = program_of()
    path = program.save(tmp_path / "p.qbayes")
    del OPS["channel_shuffle"]
    with pytest.raises(BadInput, match="of a known kind"):
        program.save(tmp_path / "again.qbayes")
    with pytest.raises(BadFile, match="'channel_shuffle'") as caught:
        qb.Program.open(path)
    assert "known kind" in caught.value.must
    assert "import the module that registers it" in caught.value.do


def test_a_target_refuses_what_it_has_no_emitter_for(registered: None, tmp_path: Path) -> None:
    program = program_of()
    assert all("magnitude" in TARGETS[name].ops() for name in ("c", "onnx", "web"))
    del EMITTERS[MagnitudeOp]
    assert "magnitude" not in TARGETS["c"].ops()
    with pytest.raises(BadInput, match="the target 'c' has") as caught:
        TARGETS["c"]().write(program, tmp_path / "c")
    assert (caught.value.got, caught.value.do) == ("'magnitude', a magnitude", "export to onnx or web")
    del WRITERS["qoperator"][MagnitudeOp]
    with pytest.raises(BadInput, match="the target 'onnx' has") as caught:
        export_onnx(program, tmp_path / "m.onnx")
    assert "no target has this op" in caught.value.do
    assert not (tmp_path / "c").exists()


def test_a_backend_runs_what_it_has_no_kernel_for_in_exact_integers(registered: None) -> None:
    needs.package("onnxruntime")
    program = program_of()
    del MAKERS[MagnitudeOp], WRITERS["qoperator"][MagnitudeOp]
    for backend in ("onednn", "onnxruntime"):
        rows_of = {row.op: row for row in choose(backend, program, torch.device("cpu")).report()}
        assert rows_of["magnitude"].how == "exact"
        assert {row.op: row.largest for row in compare_ops(program, "reference", backend, rows())}[
            "magnitude"
        ] == 0


def test_a_network_with_a_step_that_nothing_captures_is_refused_by_name(unregistered: None) -> None:
    with pytest.raises(BadInput, match="a layer ChannelShuffle at 'shuffle'"):
        quantised(W8A4)
    capture(nn.ChannelShuffle, "shuffled")
    capture(torch.channel_shuffle, "shuffled")
    capture(Magnitude, "magnitude")
    with pytest.raises(BadInput, match="every kind of nodes must be registered") as caught:
        quantised(W8A4)
    assert caught.value.got == "'shuffled' at 'shuffle'"


def test_a_float_model_without_a_form_for_a_node_is_refused(registered: None) -> None:
    needs.package("onnx")
    with pytest.raises(BadInput, match="must have a form in ONNX") as caught:
        float_model(float_posterior("pointwise"))
    assert caught.value.got == "'shuffle', a channel_shuffle"
