"""What a page must know of its models: names, files with their hashes, the noise each one asks for.

The page draws the library's own noise (Philox, keyed by seed, draw, site and row) and hands it to the models,
so that a seed gives the same answer here and in Python, and float and integers see the same draws.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from qbayes.errors import BadInput
from qbayes.export.float_onnx import float_model, float_noise_sites
from qbayes.export.onnx.metadata import Options
from qbayes.export.onnx.noise import NoiseSite, noise_sites
from qbayes.export.onnx.write import onnx_model
from qbayes.integer.arithmetic.epsilon_table import INDEX_BITS, epsilon_table
from qbayes.integer.program import Program
from qbayes.noise import keep_threshold
from qbayes.posterior.likelihood import Categorical
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.signature import Signature

FORMAT = 1
FLOAT = "float"


@dataclass(frozen=True, eq=False)
class Shown:
    """A model of the page: its name there, what it was made from, and the bytes of its ONNX file."""

    name: str
    signature: Signature
    provenance: Mapping[str, Any]
    members: int
    sites: tuple[NoiseSite, ...]
    content: bytes

    @property
    def file(self) -> str:
        return f"models/{''.join(c if c.isalnum() else '-' for c in self.name.lower())}.onnx"

    def entry(self) -> dict[str, Any]:
        method = self.provenance.get("method")
        return {
            "name": self.name,
            "method": str(method.get("name", "")) if isinstance(method, Mapping) else "",
            "file": self.file,
            "bytes": len(self.content),
            "sha256": hashlib.sha256(self.content).hexdigest(),
            "members": self.members,
            "noise": [_noise(site, self.name == FLOAT) for site in self.sites],
        }


def show_program(program: Program, name: str) -> Shown:
    """A program whose model makes one draw of each member at a time, from noise that it is given."""
    members = len(program.members)
    content = onnx_model(program, _options(program.signature, members))
    sites = tuple(noise_sites(program).values())
    return Shown(name, program.signature, program.provenance, members, sites, content)


def show_float(posterior: NetworkPosterior) -> Shown:
    """The float posterior in the same form."""
    members = len(posterior.networks)
    content = float_model(posterior, _options(posterior.signature, members))
    sites = tuple(float_noise_sites(posterior).values())
    return Shown(FLOAT, posterior.signature, posterior.provenance, members, sites, content)


def _options(signature: Signature, draws: int) -> Options:
    regression = not isinstance(signature.likelihood, Categorical)
    return Options(
        noise="inputs", draws=draws, outputs=("draws", *(["draw_variances"] if regression else []))
    )


def bits_of(program: Program) -> str:
    """``W8A8``; a program of mixed widths says so."""
    weight, activation = (program.precision.get(name) for name in ("weight", "activation"))
    mixed = " mixed" if program.precision.get("overrides") else ""
    return f"W{weight}A{activation}{mixed}" if weight and activation else "integers"


def name_programs(programs: Sequence[Program]) -> list[tuple[str, Program]]:
    """Programs by their bits; the second one of the same bits is told apart by a number."""
    found: list[tuple[str, Program]] = []
    for program in programs:
        bits = bits_of(program)
        before = sum(name.partition(" (")[0] == bits for name, _ in found)
        found.append((bits if before == 0 else f"{bits} ({before + 1})", program))
    return found


def check_alike(shown: Sequence[Shown]) -> None:
    """Raise unless all models answer the same question, so that one input can be given to all."""
    first = shown[0]
    for other in shown[1:]:
        forms = [
            (list(m.signature.input_shape), m.signature.likelihood.to_json(), list(m.signature.labels))
            for m in (first, other)
        ]
        if forms[0] != forms[1]:
            raise BadInput(
                "all models of a page must read the same inputs and give the same answers",
                f"{first.name}: {forms[0]}, {other.name}: {forms[1]}",
                "put models of one task on a page",
            )


def manifest(
    shown: Sequence[Shown],
    program: Program,
    draws: int,
    span: tuple[float, float] | None,
    examples: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The page's data; ``program`` is the first of the models, whose input grid tells the range of pixels."""
    from qbayes.export.onnx.metadata import library_version

    signature = program.signature
    likelihood = signature.likelihood
    classifier = isinstance(likelihood, Categorical)
    count = likelihood.classes if isinstance(likelihood, Categorical) else math.prod(_target_shape(program))
    widths = sorted({s.bits for one in shown for s in one.sites if s.kind != "mask" and one.name != FLOAT})
    return {
        "format": FORMAT,
        "version": library_version(),
        "task": signature.task,
        "kind": "classification" if classifier else "regression",
        "input_shape": list(signature.input_shape),
        "labels": list(signature.labels) or [str(at) for at in range(count)],
        "range": list(span or input_span(program)),
        "centre": signature.transform.mean.tolist(),
        "draws": draws,
        "examples": list(examples),
        "epsilon_tables": {str(bits): _upper_half(bits) for bits in widths},
        "models": [one.entry() for one in shown],
    }


def input_span(program: Program) -> tuple[float, float]:
    """The raw numbers between which no input is clamped, whole where they are so within one step.

    A range that calibration found from pixels of 0 … 255 is that, but for the rounding of its zero-point.
    """
    value, member, transform = program.values[program.input], program.members[0], program.signature.transform
    scale, zero = member.scales[program.input], member.zeros[program.input]
    low = float((-zero * scale * transform.std + transform.mean).max())
    high = float((((1 << value.bits) - 1 - zero) * scale * transform.std + transform.mean).min())
    step = float(scale * transform.std.max())
    return _whole(low, step), _whole(high, step)


def _whole(number: float, step: float) -> float:
    return float(round(number)) if abs(round(number) - number) <= step else number


def _target_shape(program: Program) -> tuple[int, ...]:
    return program.values[next(iter(program.outputs.values()))].shape


def _upper_half(bits: int) -> list[int]:
    """The table of ε is odd: its lower half is the upper one, mirrored."""
    return epsilon_table(bits)[1 << (INDEX_BITS - 1) :].to(torch.int64).tolist()


def _noise(site: NoiseSite, is_float: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"name": site.name, "site": site.site, "shape": list(site.shape)}
    if site.kind == "mask":
        return {**told, "kind": "mask", "threshold": keep_threshold(site.rate)}
    return {**told, "kind": "gaussian"} if is_float else {**told, "kind": "codes", "bits": site.bits}
