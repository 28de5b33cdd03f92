"""What commands read: settings ``key=value``, tasks, saved posteriors; and files they may write to."""

import os
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qbayes.errors import BadFile, BadInput

if TYPE_CHECKING:
    from qbayes import NetworkPosterior, Task


def parse_settings(option: str, given: Sequence[str]) -> dict[str, Any]:
    """``["rate=0.2", "placement=paper"]`` → ``{"rate": 0.2, "placement": "paper"}``.

    Values are TOML (``0.2``, ``true``, ``[50, 50]``, ``{conv1 = 0.1}``); what is not TOML is a string.
    """
    settings: dict[str, Any] = {}
    for item in given:
        key, equals, text = item.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key.isidentifier():
            raise BadInput(
                f"{option} must be given as key=value", f"'{item}'", f"for example {option} rate=0.2"
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


def recorded_task(posterior: "NetworkPosterior") -> tuple[str, dict[str, Any]]:
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
    posterior: "NetworkPosterior", name: str | None, data_dir: Path | None, settings: Mapping[str, Any]
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


def open_posterior(folder: Path, network: str | None = None, device: str = "cpu") -> "NetworkPosterior":
    """A saved posterior on ``device``; code of the user's is imported only where they name it here."""
    import qbayes as qb
    from qbayes.posterior.save import load_posterior
    from qbayes.training.fit import choose_device

    place = choose_device(device)
    if network is None:
        return qb.load_posterior(folder).to(place)
    return load_posterior(folder, _named_network(folder, network)).to(place)


def _named_network(folder: Path, name: str) -> Any:
    """The network of the user's choice, made for what the saved posterior reads and answers."""
    from qbayes.networks import Architecture, build_network
    from qbayes.posterior.save import read_header
    from qbayes.posterior.signature import Signature

    header = read_header(folder)
    saved = header.get("architecture")
    if saved:
        asked = Architecture.from_json(saved)
        # options belong to the network they were recorded for.
        options = asked.options if asked.name == name else {}
        return build_network(name, asked.input_shape, asked.outputs, asked.kind, **options)
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
