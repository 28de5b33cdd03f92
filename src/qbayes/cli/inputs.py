"""What commands read: settings ``key=value``, tasks, posteriors, programs; and files they may write to."""

import os
import shlex
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qbayes.errors import BadFile, BadInput

if TYPE_CHECKING:
    from torch import nn

    from qbayes import NetworkPosterior, Program, ProgramPosterior, Task
    from qbayes.posterior.storage.stored import NetworkSource

PROGRAM_SUFFIX = ".qbayes"


def parse_settings(option: str, given: Sequence[str], example: str = "rate=0.2") -> dict[str, Any]:
    """``["rate=0.2", "placement=paper"]`` → ``{"rate": 0.2, "placement": "paper"}``.

    Values are TOML (``0.2``, ``true``, ``[50, 50]``, ``{conv1 = 0.1}``); what is not TOML is a string.
    """
    settings: dict[str, Any] = {}
    for item in given:
        key, equals, text = item.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key.isidentifier():
            raise BadInput(
                f"{option} must be given as key=value", f"'{item}'", f"for example {option} {example}"
            )
        if key in settings:
            raise BadInput(f"{option} must set each key once", f"'{key}' twice", "leave one of them out")
        settings[key] = _toml_value(text.strip())
    return settings


def _toml_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = parsed["value"]
    plain = set(parsed) == {"value"} and isinstance(value, str | int | float | bool | list | dict)
    return value if plain else text


def parse_pixels(text: str) -> tuple[float, float]:
    """``0,255``: the raw inputs that stand for black and for white."""
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise BadInput("--pixels must be two numbers", f"'{text}'", "for example --pixels 0,255") from None
    return low, high


def recorded_task(posterior: "NetworkPosterior | ProgramPosterior | Program") -> tuple[str, dict[str, Any]]:
    """Name and options of the task that a posterior was fitted on, or ("", {}) where none is recorded."""
    record = posterior.provenance.get("task")
    if not isinstance(record, Mapping) or not isinstance(record.get("task"), str):
        return "", {}
    options = record.get("options")
    return str(record["task"]), dict(options) if isinstance(options, Mapping) else {}


def open_task(name: str, data_dir: Path | None, options: Mapping[str, Any]) -> "Task":
    """A task by name, or from a file, whose absolute path is recorded."""
    from qbayes.tasks import load_task

    place = str(Path(name).expanduser().resolve()) if name.endswith(".npz") else name
    return load_task(place, data_dir, **options)


def task_for(
    posterior: "NetworkPosterior | ProgramPosterior",
    name: str | None,
    data_dir: Path | None,
    settings: Mapping[str, Any],
) -> "Task":
    """The task called ``name``, by default the recorded one; the recorded options hold for the same name."""
    recorded, options = recorded_task(posterior)
    wanted = name or recorded
    if not wanted:
        raise BadInput(
            "the task must be known",
            "none is recorded with this posterior",
            "name it: --task digits, or data.npz",
        )
    return open_task(wanted, data_dir, {**(options if wanted == recorded else {}), **settings})


def is_program(path: Path) -> bool:
    """Whether a path means the file of a program, and not the folder of a posterior."""
    return path.suffix == PROGRAM_SUFFIX or path.is_file()


def open_posterior(folder: Path, network: str | None = None, device: str = "cpu") -> "NetworkPosterior":
    """A saved posterior on ``device``; code of the user's is imported only where they name it here."""
    from qbayes.device import choose_device
    from qbayes.networks import REBUILT
    from qbayes.posterior.storage.save import load_posterior
    from qbayes.quant.prepare import prepare_again

    place = choose_device(device)
    source = REBUILT if network is None else _find_network(folder, network)
    return load_posterior(folder, source, prepare_again).to(place)


def open_float_posterior(path: Path, network: str | None = None) -> "NetworkPosterior":
    """A saved posterior that is not quantised yet."""
    if is_program(path):
        raise BadInput(
            "a float posterior is needed", f"the file {path}", "give the folder that 'qbayes fit' wrote"
        )
    posterior = open_posterior(path, network)
    if posterior.quantised is not None:
        raise BadInput(
            "a float posterior is needed",
            f"{path} is quantised already, to {bits_label(posterior.quantised)}",
            "give the folder of 'qbayes fit' that it was made from",
        )
    return posterior


def open_program(path: Path, network: str | None = None) -> "Program":
    """The program in a file, or the one that a quantised posterior becomes."""
    import qbayes as qb

    if not is_program(path):
        posterior = open_posterior(path, network)
        if posterior.quantised is None:
            raise BadInput(
                "only a quantised posterior can become a program",
                f"{path} is a float posterior",
                f"quantise it first: qbayes quantize {shlex.quote(str(path))} --out …",
            )
        return qb.lower(posterior)
    if network is not None:
        raise BadInput("a program is complete without a network", f"--network {network}", "leave it out")
    return qb.Program.open(path)


def bits_label(precision: Mapping[str, Any]) -> str:
    """``W4A4`` from the recorded precision; a file from elsewhere may record another one, or none."""
    weight, activation = precision.get("weight"), precision.get("activation")
    known = isinstance(weight, int) and isinstance(activation, int)
    return f"W{weight}A{activation}" if known else "n bits"


def open_answering(
    path: Path,
    network: str | None = None,
    device: str = "auto",
    backend: str | None = None,
    frozen_draws: int = 0,
) -> "NetworkPosterior | ProgramPosterior":
    """What predicts: a posterior as it was saved, or a program on a backend.

    A quantised folder answers by its fake-quantised network, and is lowered where a backend is named.
    """
    import qbayes as qb
    from qbayes.device import choose_device
    from qbayes.integer.backends.base import BACKENDS

    if backend not in (None, "auto"):
        BACKENDS[backend]
    if backend is not None or is_program(path):
        # of the backends, reference alone has another place to run: "auto" can only mean the CPU for others.
        on_cpu = device == "auto" and backend not in (None, "auto", "reference")
        place = choose_device("cpu" if on_cpu else device)
        program = open_program(path, network)
        return qb.load(program, backend or "auto", frozen_draws=frozen_draws, device=place)
    if frozen_draws:
        raise BadInput(
            "only a program on a backend can keep draws of its weights",
            f"--frozen-draws {frozen_draws} for the folder {path}",
            "lower it first, or name a --backend",
        )
    return open_posterior(path, network, device)


def _find_network(folder: Path, name: str) -> "NetworkSource":
    """The network that the user names, for what the saved posterior reads and answers."""
    from qbayes.networks import rebuilt_by
    from qbayes.posterior.storage.save import read_header

    header = read_header(folder)
    if header.get("architecture"):
        return rebuilt_by(name)
    return lambda _: _of_signature(folder, header, name)


def _of_signature(folder: Path, header: Mapping[str, Any], name: str) -> "nn.Module":
    """A network of which nothing is recorded but what it reads and answers."""
    from qbayes.networks import build_network
    from qbayes.posterior.signature import Signature

    try:
        signature = Signature.from_json(header["signature"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadFile(
            f"{folder / 'posterior.json'} must hold every entry of the format",
            f"{error!r}",
            "refit or restore it",
        ) from None
    likelihood = signature.likelihood.to_json()
    if likelihood["kind"] == "categorical":
        return build_network(name, signature.input_shape, likelihood["classes"], "classification")
    return build_network(name, signature.input_shape, tuple(likelihood["shape"]), "regression")


def check_new_file(path: Path, suffixes: Sequence[str], *, overwrite: bool) -> None:
    """Raise unless a result can be written to ``path`` without losing anything."""
    if path.suffix not in suffixes:
        known = ", ".join(suffixes)
        raise BadInput(
            f"the output file must end in {known}", f"{path}", f"for example {path.stem}{suffixes[0]}"
        )
    if path.is_dir():
        raise BadFile("the output must be a file", f"the folder {path}", "choose another path")
    if path.exists() and not overwrite:
        raise BadFile(
            "the output file must be new", f"{path} exists", "choose another path, or pass --overwrite"
        )
    check_writable(path.parent)


def check_writable(folder: Path) -> None:
    """Raise unless files can be made in ``folder``; what is made for the test is taken away again."""
    absent = [place for place in [folder.absolute(), *folder.absolute().parents] if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".qbayes-"):
            pass
    except OSError as error:
        raise BadFile(
            f"the folder {folder} must be writable", f"{error.strerror or error}", "choose another folder"
        ) from None
    finally:
        for place in absent:
            if place.is_dir() and not any(os.scandir(place)):
                place.rmdir()
