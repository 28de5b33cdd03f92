"""Programs on disk: equal when opened, small, never half written, and everything else is refused."""

import errno
import json
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor

from qbayes.errors import BadFile, BadInput
from qbayes.integer.file import file
from qbayes.integer.file.member_record import member_bytes
from qbayes.integer.file.record import write_text
from qbayes.integer.ops import Add, AvgPool, Conv, Linear, Mask, Op, Reshape, Weights
from qbayes.integer.program import Program
from qbayes.integer.structure.cost import cost

Make = Callable[..., Program]
Run = Callable[..., dict[str, Tensor]]


@pytest.mark.parametrize("kind", ["every", "heads", "constant", "wide"])
@pytest.mark.parametrize("members", [1, 3])
def test_equal_when_opened(kind: str, members: int, make_program: Make, run_ops: Run, tmp_path: Path) -> None:
    program = make_program(kind, members)
    path = program.save(tmp_path / "deep" / "p.qbayes")
    again = Program.open(str(path))
    assert again.equals(program)
    for old, new in zip(program.members, again.members, strict=True):
        for op in program.ops:
            for name, codes in old.constants[op.name].items():
                assert new.constants[op.name][name].dtype == codes.dtype
    codes = torch.randint(0, 256, (4, *program.values["x"].shape), dtype=torch.uint8)
    before, after = (run_ops(p, members - 1, codes, seed=5) for p in (program, again))
    assert all(torch.equal(before[name], after[name]) for name in program.values)


def test_equal_programs_make_equal_files(make_program: Make, tmp_path: Path) -> None:
    one, two = (make_program().save(tmp_path / name).read_bytes() for name in ("a", "b"))
    assert one == two
    again = Program.open(tmp_path / "a").save(tmp_path / "c")
    assert again.read_bytes() == one


def test_the_file_is_what_the_documentation_says(make_program: Make, tmp_path: Path) -> None:
    """Read by safetensors alone."""
    program = make_program("heads", members=2)
    path = program.save(tmp_path / "p.qbayes")
    with safe_open(path, "pt") as file:
        assert set(file.keys()) == {"codes", "scales"}
        entry = json.loads(file.metadata()["qbayes"])
        codes, scales = file.get_tensor("codes"), file.get_tensor("scales")
    assert entry["program"]["version"] == 2
    assert entry["program"]["needed"] == ["graph", "signature"]
    assert entry["program"]["sections"]["graph"]["ops"][0][:5] == ["linear", "first", [0], None, 8]
    assert codes.shape == (2, member_bytes(program))
    assert codes[1, -4:].tolist() == [program.members[1].zeros[name] for name in program.value_order()]
    assert scales[1].tolist() == [program.members[1].scales[name] for name in program.value_order()]
    # the first constant: 20 weights of 4 bits, two to a byte, the first in the lower half.
    weights = program.members[0].constants["first"]["weight"].flatten()
    assert codes[0, :10].tolist() == [(int(a) & 15) | (int(b) & 15) << 4 for a, b in weights.view(10, 2)]


def test_wide_zero_points_take_two_bytes(make_program: Make, tmp_path: Path) -> None:
    """Of two values of 8 bits and heads of 16 and 11; also the clamps of the heads take two bytes."""
    program, narrow = make_program("wide", members=2), make_program("heads", members=2)
    assert member_bytes(program) == member_bytes(narrow) + 2 * (2 + 1)
    path = program.save(tmp_path / "p.qbayes")
    with safe_open(path, "pt") as file:
        codes = file.get_tensor("codes")
    first, second, *heads = [program.members[1].zeros[name] for name in program.value_order()]
    wide = [byte for zero in heads for byte in (zero & 255, zero >> 8)]
    assert max(heads) > 255
    assert codes[1, -6:].tolist() == [first, second, *wide]
    assert Program.open(path).equals(program)


def resnet(kind: str, bits: int, masks: bool) -> tuple[list[Op], dict[str, int]]:
    """The slim ResNet-18: 24 … 192 channels, two blocks a stage, 1 × 1 shortcuts, BN folded."""
    sites, ops = iter(range(1000)), []

    def weights() -> Weights:
        return Weights(kind, bits, sigma_bits=bits, site=next(sites), grids=2)  # pyright: ignore[reportArgumentType]

    def conv(name: str, source: str, wide: tuple[int, int], kernel: int, stride: int) -> str:
        pad, around = (kernel // 2,) * 2, (kernel, kernel)
        ops.append(Conv(name, (source,), name, weights(), *wide, around, (stride, stride), pad, (1, 1)))
        return mask(name)

    def mask(name: str) -> str:
        if masks:
            ops.append(Mask(f"{name}.mask", (name,), f"{name}.mask", next(sites), 0.15, True))
        return f"{name}.mask" if masks else name

    last, width = conv("conv1", "x", (3, 24), 3, 1), 24
    for stage, channels in enumerate((24, 48, 96, 192), start=1):
        for block in range(2):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            inner = conv(f"{name}.conv1", last, (width, channels), 3, stride)
            inner = conv(f"{name}.conv2", inner, (channels, channels), 3, 1)
            if stride > 1:
                last = conv(f"{name}.shortcut.0", last, (width, channels), 1, stride)
            ops.append(Add(f"{name}.add", (inner, last), f"{name}.add"))
            last, width = mask(f"{name}.add"), channels
    ops.append(AvgPool("avgpool", (last,), "avgpool", (1, 1), (1, 1), (0, 0), adaptive=(1, 1)))
    ops.append(Reshape("flatten", ("avgpool",), "flatten", (192,)))
    ops.append(Linear("fc", ("flatten",), "fc", weights(), 192, 10))
    return ops, {"x": 8, **{op.output: 7 for op in ops}, "fc": 8}


@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize("kind", ["point", "masks", "gaussian"])
def test_files_are_small(kind: str, bits: int, build_classifier: Make, tmp_path: Path) -> None:
    """At most bits/32 of the float32 weights + 5 %, with all that comes with them; two codes a Gaussian."""
    ops, widths = resnet("gaussian" if kind == "gaussian" else "point", bits, kind == "masks")
    about = {
        "precision": {"weight": bits, "activation": 7, "overrides": {}, "range": "lsq", "symmetric": True},
        "provenance": {
            "task": {"name": "cifar10", "fingerprint": "0" * 64, "rows": [45000, 5000, 10000]},
            "method": {"name": "mcd", "rate": 0.15, "channelwise": True},
            "budget": {"epochs": 300, "batch_size": 256, "learning_rate": 0.005, "schedule": "cosine"},
            "losses": [float(value) for value in torch.rand(300)],
            "versions": {"qbayes": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6", "python": "3.11.7"},
            "device": "NVIDIA H200",
            "seed": 0,
        },
    }
    program = build_classifier(ops, widths, (3, 32, 32), 10, **about)
    path = program.save(tmp_path / "p.qbayes")
    weights = cost(program, variance=False).weights
    assert 1_570_000 < weights < 1_576_000
    codes = 2 if kind == "gaussian" else 1
    assert path.stat().st_size <= 1.05 * codes * bits / 32 * 4 * weights
    assert path.stat().st_size > codes * bits / 32 * 4 * weights
    kept = Program.open(path).provenance
    assert set(about["provenance"]) - set(kept) == {"losses"}
    assert kept["budget"] == about["provenance"]["budget"]


def test_only_verified_programs_are_written(make_program: Make, tmp_path: Path) -> None:
    program = make_program()
    program.members[0].constants["conv"]["weight"].fill_(-8)
    with pytest.raises(BadInput, match="'conv': weight"):
        program.save(tmp_path / "p")
    for about in ({"x": float("nan")}, {"x": object()}, {"x": "\ud800"}):
        for part in ("precision", "provenance"):
            with pytest.raises(BadInput, match="JSON"):
                replace(make_program(), **{part: about}).save(tmp_path / "p")
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_full_disk_keeps_the_old_file(
    function: str, make_program: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = make_program("heads").save(tmp_path / "p.qbayes")
    old = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, function, full)
        with pytest.raises(BadFile, match="No space"):
            make_program().save(path)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    cases = {
        "nothing": "No such file",
        "": "Is a directory|regular",
        "pipe": "device or pipe",
        "a\0b": "null",
    }
    for name, why in cases.items():
        with pytest.raises(BadFile, match=why):
            Program.open(tmp_path / name)
    with pytest.raises(BadFile, match="device or pipe"):
        Program.open("/dev/zero")


def container(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


TENSORS = {"codes": torch.zeros(1, 4, dtype=torch.uint8), "scales": torch.ones(1, 4)}


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "qbayes program"),
        (b"\x80\x04K\x01.", "qbayes program"),
        (b"\xff" * 64, "qbayes program"),
        (struct.pack("<Q", 1 << 62) + b"{}", "qbayes program"),
        (container(b"{ "), "readable JSON"),
        (container(b"\xff\xfe{}"), "readable JSON"),
        (container(b"[]"), "JSON object"),
        (container(b"[" * 200_000), "readable JSON"),
        (container(b'{"a":1,"a":2}'), "stands twice"),
        (container(b'{"a":NaN}'), "not JSON"),
        (container(b"{}"), "another kind"),
        (save_tensors({"weight": torch.ones(3)}), "another kind"),
        (save_tensors({"weight": torch.ones(3)}, {"qbayes": "{}"}), "codes"),
        (save_tensors({**TENSORS, "more": torch.ones(1)}, {"qbayes": "{}"}), "codes"),
        (
            save_tensors({**TENSORS, "scales": torch.ones(1, 4, dtype=torch.float64)}, {"qbayes": "{}"}),
            "codes",
        ),
        (save_tensors(TENSORS, {"qbayes": "{}"}), "sha256"),
        (save_tensors(TENSORS, {"qbayes": "ü" * 100}), "ASCII"),
        (save_tensors(TENSORS, {"qbayes": "{}", "pickle": "x"}), "another kind"),
    ],
)
def test_foreign_files(payload: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(payload)
    with pytest.raises(BadFile, match=why) as caught:
        Program.open(tmp_path / "p")
    assert str(tmp_path) in caught.value.got
    assert caught.value.do


def written(path: Path, text: str, codes: Tensor, scales: Tensor) -> Path:
    """A file with the right hash, whatever it says."""
    tensors = {"codes": codes, "scales": scales}
    digest = file.content_hash(text, tensors)
    path.write_bytes(save_tensors(tensors, {"qbayes": f'{{"sha256":"{digest}","program":{text}}}'}))
    return path


def parts(program: Program, path: Path) -> tuple[dict[str, Any], Tensor, Tensor]:
    with safe_open(program.save(path), "pt") as file:
        return (
            json.loads(write_text(program)),
            file.get_tensor("codes").clone(),
            file.get_tensor("scales").clone(),
        )


def graph(header: dict[str, Any]) -> dict[str, Any]:
    return header["sections"]["graph"]


def signature(header: dict[str, Any]) -> dict[str, Any]:
    return header["sections"]["signature"]


HEADERS: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda h: h.update(format="other"), "qbayes program"),
    (lambda h: h.update(version=3), "version of the format must be 2"),
    (lambda h: h.update(version=True), "version"),
    (lambda h: h.update(version="1"), "version"),
    (lambda h: h.update(extra=1), "entries"),
    (lambda h: h["needed"].append("thresholds"), "needs must be known"),
    (lambda h: h["needed"].append(1), "needed sections"),
    (lambda h: h["needed"].pop(), "as qbayes writes it"),
    (lambda h: h.update(needed={}), "needed sections must be a list"),
    (lambda h: h.update(sections=[]), "sections must be a JSON object"),
    (lambda h: h["sections"].pop("precision"), "sections graph, signature, precision"),
    (lambda h: h["sections"].update({str(i): i for i in range(61)}), "at most 64 sections"),
    (lambda h: h["sections"].update(graph=[]), "graph must have the entries"),
    (lambda h: graph(h).update(extra=1), "graph must have the entries"),
    (lambda h: graph(h).pop("fields"), "entries"),
    (lambda h: graph(h)["fields"].update(linear=["weights"]), "those of this version"),
    (lambda h: graph(h)["fields"].update(conv=graph(h)["fields"]["linear"]), "as qbayes writes it"),
    (lambda h: graph(h).update(fields=[]), "those of this version"),
    (lambda h: graph(h).update(ops={}), "the ops must be a list"),
    (lambda h: graph(h).update(ops=[]), "1 to 10000 ops"),
    (lambda h: graph(h).update(ops=graph(h)["ops"] * 4000), "1 to 10000 ops"),
    (lambda h: graph(h)["ops"].append(1), "the ops must be a list"),
    (lambda h: graph(h)["ops"].append([]), "op 3 must be a list"),
    (lambda h: graph(h)["ops"][0].append(1), r"op 0 \('first'\) must be a list of"),
    (lambda h: graph(h)["ops"][0].__setitem__(0, "exec"), "known kind"),
    (lambda h: graph(h)["ops"][0].__setitem__(2, [1]), "computed before"),
    (lambda h: graph(h)["ops"][0].__setitem__(2, [-1]), "computed before"),
    (lambda h: graph(h)["ops"][0].__setitem__(2, [0.0]), "whole number"),
    (lambda h: graph(h)["ops"][0].__setitem__(3, "first"), "as qbayes writes it"),
    (lambda h: graph(h)["ops"][0].__setitem__(3, ""), "as qbayes writes it|printable"),
    (lambda h: graph(h)["ops"][0].__setitem__(3, "x"), "written once"),
    (lambda h: graph(h)["ops"][0].__setitem__(4, True), "whole number"),
    (lambda h: graph(h)["ops"][0].__setitem__(4, 16), "must read codes of at most 8 bits"),
    (lambda h: graph(h)["ops"][1].__setitem__(4, 17), "2 to 16 bits"),
    (lambda h: graph(h)["ops"][1].__setitem__(4, 16), "the codes of a member must take"),
    (lambda h: graph(h)["input"].__setitem__(2, 17), "2 to 16 bits"),
    (
        lambda h: graph(h)["input"].__setitem__(2, 16),
        "the codes of a member must take|read codes of at most 8 bits",
    ),
    (lambda h: graph(h)["ops"][0].__setitem__(6, 10**30), "whole number"),
    (lambda h: graph(h)["ops"][0][5].__setitem__(0, "exact"), "one of"),
    (lambda h: graph(h)["ops"][0][5].__setitem__(8, False), "whole number"),
    (lambda h: graph(h)["input"].__setitem__(1, [10**6, 10**6]), "signature|2\\^28|elements"),
    (lambda h: graph(h)["outputs"].update(mean=99), "one of the 4 values"),
    (lambda h: graph(h)["outputs"].update(mean="first"), "whole number"),
    (lambda h: graph(h)["outputs"].update(mean=1), r"must have the shape \(2,\)"),
    (lambda h: graph(h).update(constant_heads={"log_variance": [1]}), "finite real number"),
    (lambda h: signature(h).update(input_shape=[True]), "must fit|written|scale"),
    (lambda h: signature(h).update(input_shape=["4"]), "as qbayes writes it"),
    (lambda h: signature(h).update(task=1), "as qbayes writes it"),
    (lambda h: signature(h).update(note="x"), "as qbayes writes it"),
    (lambda h: signature(h).update(labels=["\ud800", "b"]), "JSON"),
    (lambda h: signature(h)["transform"].update(mean=[0.1, 0, 0, 0]), "as qbayes writes it"),
    (lambda h: signature(h).pop("target"), "signature must hold"),
    (
        lambda h: signature(h).update(likelihood={"kind": "gaussian", "shape": [1e9]}),
        "must fit",
    ),
    (lambda h: h["sections"].update(signature=None), "signature must be"),
    (lambda h: h["sections"].update(precision=[]), "precision must be"),
    (lambda h: h["sections"].update(provenance={"losses": [0.5] * 1000}), "as qbayes writes it"),
]


@pytest.mark.parametrize(("edit", "why"), HEADERS, ids=[f"{i}" for i in range(len(HEADERS))])
def test_edited_headers(
    edit: Callable[[dict[str, Any]], object], why: str, make_program: Make, tmp_path: Path
) -> None:
    """The hash is made right again: what is refused is refused for what it says."""
    header, codes, scales = parts(make_program("heads"), tmp_path / "p")
    assert Program.open(written(tmp_path / "p", json.dumps(header, separators=(",", ":")), codes, scales))
    edit(header)
    path = written(tmp_path / "p", json.dumps(header, separators=(",", ":")), codes, scales)
    with pytest.raises(BadFile, match=why):
        Program.open(path)


def test_a_section_of_a_later_version_is_kept(make_program: Make, tmp_path: Path) -> None:
    """What no reader needs to know survives being opened and saved; what it needs is refused, by name."""
    header, codes, scales = parts(make_program("heads"), tmp_path / "p")
    header["sections"]["thresholds"] = later = {"warn": [0.5, 0.25], "names": ["a"]}
    path = written(tmp_path / "p", json.dumps(header, separators=(",", ":")), codes, scales)
    program = Program.open(path)
    assert program.sections == {"thresholds": later}
    assert program.save(tmp_path / "q").read_bytes() == path.read_bytes()
    assert not program.equals(make_program("heads"))
    header["needed"].append("thresholds")
    path = written(tmp_path / "p", json.dumps(header, separators=(",", ":")), codes, scales)
    with pytest.raises(BadFile, match="'thresholds'") as caught:
        Program.open(path)
    assert caught.value.do == "update qbayes"


@pytest.mark.parametrize(("version", "do"), [(1, "lower the posterior again"), (3, "update qbayes")])
def test_another_version_is_refused_with_what_to_do(
    version: int, do: str, make_program: Make, tmp_path: Path
) -> None:
    header, codes, scales = parts(make_program("heads"), tmp_path / "p")
    header["version"] = version
    with pytest.raises(BadFile, match="version of the format") as caught:
        Program.open(written(tmp_path / "p", json.dumps(header, separators=(",", ":")), codes, scales))
    assert caught.value.do.startswith(do)


def test_edited_tensors(make_program: Make, tmp_path: Path) -> None:
    program = make_program("heads")
    header, codes, scales = parts(program, tmp_path / "p")
    text = json.dumps(header, separators=(",", ":"))
    assert Program.open(written(tmp_path / "p", text, codes[:1], scales[:1])).members[0].zeros
    nothing, poked = torch.full_like(scales, float("nan")), codes.clone()
    poked[0, 0] = 0x88  # two codes of −8
    cases = [
        (codes[:, :-1], scales, "must take"),
        (codes, scales[:, :-1], "scales a member"),
        (codes[:1], scales, "scales a member"),
        (codes.flatten(), scales, "members"),
        (codes[:0], scales[:0], "members"),
        (codes, nothing, "scale of 'x' must be above 0"),
        (codes, -scales, "scale of 'x'"),
        (codes | 255, scales, "'first': shift: bits that carry no code"),
        (poked, scales, "'first': weight must lie in -7 … 7"),
    ]
    for bad_codes, bad_scales, why in cases:
        path = written(tmp_path / "p", text, bad_codes.contiguous(), bad_scales.contiguous())
        with pytest.raises(BadFile, match=why):
            Program.open(path)


def test_spelling_is_part_of_the_form(make_program: Make, tmp_path: Path) -> None:
    header, codes, scales = parts(make_program("heads"), tmp_path / "p")
    for text in (json.dumps(header), json.dumps(header, separators=(",", ":"), sort_keys=True)):
        with pytest.raises(BadFile, match="as qbayes writes it"):
            Program.open(written(tmp_path / "p", text, codes, scales))


def test_a_huge_file_is_not_read(make_program: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = make_program("heads").save(tmp_path / "p")
    monkeypatch.setattr(file, "LARGEST_FILE", path.stat().st_size - 1)
    with pytest.raises(BadFile, match="at most"):
        Program.open(path)
