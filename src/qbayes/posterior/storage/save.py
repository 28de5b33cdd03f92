"""Posteriors on disk: a folder with ``posterior.json`` and ``weights.safetensors``; nothing is unpickled.

The JSON is put in place last and holds the sha256 of the weights and of itself, so that a folder is either
whole or refused.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from qbayes.errors import BadFile, BadInput
from qbayes.posterior.likelihood import ConstantNoise
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.storage.stored import (
    NetworkSource,
    Recorded,
    Requantise,
    buffers_added_later,
    check_fits,
    guard_read,
    members_of,
    module_for,
)
from qbayes.posterior.storage.weights_header import Damaged, read_layout

FORMAT = "qbayes-posterior"
VERSION = 1
HEADER, WEIGHTS = "posterior.json", "weights.safetensors"
# it can only be read by setting it, for the whole process: once, and to one that gives nobody else a right,
# for a thread that makes a file meanwhile.
_UMASK = os.umask(0o077)
os.umask(_UMASK)


def check_output_folder(folder: Path, *, overwrite: bool = False) -> None:
    """Raise unless ``folder`` can take a new posterior without losing anything."""
    try:
        _check_folder(folder, overwrite)
    except OSError as error:
        raise BadFile(
            "the output folder must be reachable", f"{folder}: {error.strerror}", "choose another path"
        ) from None


def _check_folder(folder: Path, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise BadFile("the output must be a folder", f"the file {folder}", "choose another path")
    if folder.is_dir():
        held = sorted(path.name for path in folder.iterdir())
        ours = set(held) <= {HEADER, WEIGHTS, "checkpoint"}
        if held and not (ours and overwrite):
            way_out = (
                "pass overwrite (--overwrite) to replace it" if ours else "nothing in it will be touched"
            )
            raise BadFile(
                "the output folder must be new or empty",
                f"{folder} holds {', '.join(held[:4])}{' …' if len(held) > 4 else ''}",
                f"choose another folder; {way_out}",
            )
    nearest_folder = next(path for path in [folder, *folder.absolute().parents] if path.exists())
    if not nearest_folder.is_dir() or not os.access(nearest_folder, os.W_OK | os.X_OK):
        raise BadFile(
            "the output folder must be writable",
            f"{nearest_folder} takes no new files",
            "choose another folder",
        )


def save_posterior(posterior: NetworkPosterior, folder: str | Path, *, overwrite: bool = False) -> Path:
    """Write a posterior to a folder; it is bit-equal when read back by ``load_posterior``.

    Both files are written, or none.

    Example:
        >>> import tempfile, qbayes as qb
        >>> task = qb.load_task("digits")
        >>> posterior = qb.fit("mlp", task, "mcd", qb.Budget(epochs=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = qb.save_posterior(posterior, f"{folder}/mcd")
        ...     sorted(file.name for file in path.iterdir())
        ['posterior.json', 'weights.safetensors']

    Args:
        posterior: A float or a fake-quantised posterior.
        folder: A new or an empty folder.
        overwrite: Whether a posterior that lies there is replaced; by default it is kept, and the call
            refused. A folder with other files is always refused.

    Returns:
        The folder.

    Raises:
        BadFile: The folder cannot take the posterior.
        BadInput: Its architecture or provenance is no JSON.
    """
    folder = Path(folder)
    check_output_folder(folder, overwrite=overwrite)
    tensors = {
        f"{index}/{name}": value.detach().cpu().contiguous().clone()  # shared layers: one tensor, two names
        for index, member in enumerate(posterior.members)
        for name, value in member.items()
    }
    payload = save_tensors(tensors)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "members": len(posterior.members),
        "sites": [site.to_json() for site in posterior.sites],
        "constant_noise": isinstance(posterior.network, ConstantNoise),
        "architecture": posterior.architecture,
        "signature": posterior.signature.to_json(),
        "provenance": posterior.provenance,
        "weights_sha256": hashlib.sha256(payload).hexdigest(),
    }
    if posterior.quantised is not None:
        header["precision"] = posterior.quantised
    try:
        header["content_sha256"] = _content_hash(header)
        text = json.dumps(header, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BadInput(
            "architecture and provenance must be JSON with finite numbers", f"{error}", "leave the rest out"
        ) from None
    write_together({folder / WEIGHTS: payload, folder / HEADER: text.encode()})
    return folder


def _content_hash(header: Mapping[str, Any]) -> str:
    """sha256 of the header without its own hash, whatever the order and spacing of its JSON."""
    content = {key: value for key, value in header.items() if key != "content_sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def write_atomically(path: Path, payload: bytes) -> None:
    """Write one file so that a reader sees the old content or the new one, whole."""
    write_together({path: payload})


def write_together(payloads: Mapping[Path, bytes]) -> None:
    """Write all files or none.

    All are written beside their targets and flushed to disk, where a full disk shows itself; then each is
    renamed. Should a rename fail, the files already replaced are put back.
    """
    staged: dict[Path, Path] = {}
    try:
        for path, payload in payloads.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            staged[path] = Path(scratch)
            # a scratch file is its owner's alone; the result has the rights of any file the user makes.
            os.chmod(scratch, 0o666 & ~_UMASK)
            with os.fdopen(handle, "wb") as file:
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
        _swap_in(staged)
    except OSError as error:
        raise BadFile(
            f"{next(iter(payloads)).parent} must be writable",
            f"{error.strerror or error}",
            "free some space or choose another folder; what was there before is unchanged",
        ) from error
    finally:
        for scratch in staged.values():
            scratch.unlink(missing_ok=True)


def _swap_in(staged: Mapping[Path, Path]) -> None:
    kept: dict[Path, Path] = {}
    placed: list[Path] = []
    try:
        for path, scratch in staged.items():
            if path.exists() and len(staged) > 1:
                kept[path] = scratch.with_name(f"{scratch.name}.old")
                os.replace(path, kept[path])
            os.replace(scratch, path)
            placed.append(path)
    except BaseException:
        for path in set(placed) - set(kept):
            path.unlink(missing_ok=True)
        for path, old in kept.items():
            if old.exists():
                os.replace(old, path)
        raise
    for old in kept.values():
        old.unlink(missing_ok=True)


def read_header(folder: str | Path) -> dict[str, Any]:
    """The checked JSON of a saved posterior."""
    path = Path(folder) / HEADER
    try:
        header = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise Damaged(
            "a posterior is a folder with posterior.json and weights.safetensors",
            f"no {path}",
            "give the folder that 'qbayes fit --out' or save_posterior wrote",
        ) from None
    except (ValueError, RecursionError) as error:
        raise Damaged(
            f"{path} must be readable JSON", f"{error}", "the file is damaged: restore or refit it"
        ) from None
    except OSError as error:
        raise BadFile(
            f"{path} must be readable JSON", f"{error.strerror}", "check its rights and the disk"
        ) from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise Damaged("the file must be a qbayes posterior", f"{path}", "check the path")
    if header.get("version") != VERSION:
        raise BadFile(
            f"the format version must be {VERSION}",
            f"{header.get('version')!r} in {path}",
            "read it with the qbayes version that wrote it, or update qbayes",
        )
    _check_content(path, header)
    return header


def _check_content(path: Path, header: dict[str, Any]) -> None:
    try:
        whole = _content_hash(header) == header.get("content_sha256")
    except (ValueError, RecursionError):  # NaN or an infinity, which we never write, or a nest without end
        whole = False
    if not whole:
        raise Damaged(
            f"{path} must have the sha256 that it records",
            "another one: the file is damaged or was edited",
            "restore it from a copy, or refit",
        )


def load_posterior(
    folder: str | Path, network: NetworkSource, requantise: Requantise | None = None
) -> NetworkPosterior:
    """Read a posterior; ``network`` is the plain module, or builds it from the saved architecture.

    ``requantise`` rebuilds the structure of a quantised one; without it, those are refused. The weights' own
    header is compared with the network before they are read, and before one of ours takes memory.
    """
    header = read_header(folder)
    path = Path(folder) / WEIGHTS
    try:
        layout = read_layout(path)
        recorded = guard_read(lambda: Recorded.of(header))
        stored = guard_read(lambda: members_of(layout, recorded.members))
        if recorded.precision is not None and requantise is None:
            raise BadInput("a float posterior is needed", f"{folder} is quantised", "give the float one")
        module = module_for(network, recorded, stored[0], requantise)
        check_fits(module, stored)
    except BadInput:
        # weights that are not those of the JSON fit nothing: that is what has to be said.
        _check_weights(path, header)
        raise
    members = members_of(_read_weights(path, header), recorded.members)
    return NetworkPosterior(
        module,
        [{**buffers_added_later(module), **member} for member in members],
        recorded.signature,
        architecture=recorded.architecture,
        provenance=recorded.provenance,
        sites=recorded.sites,
        quantised=recorded.precision,
    )


def _check_weights(path: Path, header: Mapping[str, Any]) -> None:
    """Raise if the weights are there and have another hash than recorded."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        _check_hash(path, header, hashlib.file_digest(file, "sha256").hexdigest())


def _check_hash(path: Path, header: Mapping[str, Any], found: str) -> None:
    if found != header.get("weights_sha256"):
        raise Damaged(
            f"{path} must have the sha256 that {HEADER} records",
            "another one: the file is damaged or belongs to another posterior",
            "restore it from a copy, or refit",
        )


def _read_weights(path: Path, header: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read, and not mapped: a file that is cut while it is mapped ends the process."""
    try:
        payload = path.read_bytes()
    except OSError as error:
        raise BadFile(
            f"{path} must be readable", f"{error.strerror}", "restore the file beside its JSON"
        ) from None
    _check_hash(path, header, hashlib.sha256(payload).hexdigest())
    try:
        return load_tensors(payload)
    except SafetensorError as error:
        raise Damaged(
            f"{path} must be a safetensors file", f"{error}", "restore it from a copy, or refit"
        ) from None


def state_to(state: Mapping[str, Tensor], device: torch.device | str) -> dict[str, Tensor]:
    """A detached copy of a state on ``device``."""
    return {name: value.detach().to(device, copy=True) for name, value in state.items()}


def state_hash(module: nn.Module) -> str:
    """sha256 of all parameters and buffers: where a training begins."""
    return hashlib.sha256(b"".join(_bytes(value) for value in module.state_dict().values())).hexdigest()


def _bytes(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
