"""Posteriors on disk: a folder with ``posterior.json`` and ``weights.safetensors``; nothing is ever unpickled.

The JSON is written last and holds the sha256 of the weights, so that a folder is either whole or refused.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from qbayes.errors import BadFile, BadInput, QbayesError
from qbayes.posterior.likelihood import ConstantNoise, Gaussian
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.signature import Signature
from qbayes.posterior.sites import Site, place_sites

FORMAT = "qbayes-posterior"
VERSION = 1
HEADER, WEIGHTS = "posterior.json", "weights.safetensors"

NetworkSource = nn.Module | Callable[[Mapping[str, Any]], nn.Module]


def check_output_folder(folder: Path, *, overwrite: bool = False) -> None:
    """Raise unless ``folder`` can take a new posterior without losing anything."""
    if folder.exists() and not folder.is_dir():
        raise BadFile("the output must be a folder", f"the file {folder}", "choose another path")
    if folder.is_dir():
        held = sorted(path.name for path in folder.iterdir())
        ours = set(held) <= {HEADER, WEIGHTS, "checkpoint"}
        if held and not (ours and overwrite):
            way_out = "pass overwrite to replace it" if ours else "nothing in it will be touched"
            raise BadFile(
                "the output folder must be new or empty",
                f"{folder} holds {', '.join(held[:4])}{' …' if len(held) > 4 else ''}",
                f"choose another folder; {way_out}",
            )
    nearest_folder = next(path for path in [folder, *folder.absolute().parents] if path.exists())
    if not os.access(nearest_folder, os.W_OK | os.X_OK):
        raise BadFile("the output folder must be writable", f"{nearest_folder} is read-only", "choose another folder")


def save_posterior(posterior: NetworkPosterior, folder: str | Path, *, overwrite: bool = False) -> Path:
    """Write the posterior; bit-equal when read back."""
    folder = Path(folder)
    check_output_folder(folder, overwrite=overwrite)
    tensors = {
        f"{index}/{name}": value.detach().cpu().contiguous()
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
    write_atomically(folder / WEIGHTS, payload)
    write_atomically(folder / HEADER, json.dumps(header, indent=1, allow_nan=False).encode())
    return folder


def write_atomically(path: Path, payload: bytes) -> None:
    """Write beside the target, flush to disk, rename: a reader sees the old file or the new one, whole."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as scratch:
            try:
                scratch.write(payload)
                scratch.flush()
                os.fsync(scratch.fileno())
                os.replace(scratch.name, path)
            except BaseException:
                Path(scratch.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise BadFile(
            f"{path} must be writable",
            f"{error.strerror or error}",
            "free some space or choose another folder; what was there before is unchanged",
        ) from error


def read_header(folder: str | Path) -> dict[str, Any]:
    """The checked JSON of a saved posterior."""
    path = Path(folder) / HEADER
    try:
        header = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BadFile(
            "a posterior is a folder with posterior.json and weights.safetensors",
            f"no {path}",
            "give the folder that 'qbayes fit --out' or save_posterior wrote",
        ) from None
    except (OSError, ValueError) as error:
        raise BadFile(f"{path} must be readable JSON", f"{error}", "the file is damaged: restore or refit it") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise BadFile("the file must be a qbayes posterior", f"{path}", "check the path")
    if header.get("version") != VERSION:
        raise BadFile(
            f"the format version must be {VERSION}",
            f"{header.get('version')!r} in {path}",
            "read it with the qbayes version that wrote it, or update qbayes",
        )
    return header


def load_posterior(folder: str | Path, network: NetworkSource) -> NetworkPosterior:
    """Read a posterior; ``network`` is the plain module, or builds it from the saved architecture."""
    header = read_header(folder)
    tensors = _read_weights(Path(folder) / WEIGHTS, header)
    try:
        signature = Signature.from_json(header["signature"])
        sites = [Site.from_json(site) for site in header["sites"]]
        members = _members(tensors, int(header["members"]))
        plain = network if isinstance(network, nn.Module) else network(header["architecture"] or {})
        module = place_sites(plain, sites)
        if header["constant_noise"] and isinstance(signature.likelihood, Gaussian):
            module = ConstantNoise(module, signature.likelihood.shape)
    except QbayesError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadFile(
            f"{HEADER} must hold every entry of the format", f"{type(error).__name__}: {error}", "refit or restore it"
        ) from None
    _check_fits(module, members)
    return NetworkPosterior(
        module, members, signature, architecture=header["architecture"], provenance=header["provenance"]
    )


def _read_weights(path: Path, header: Mapping[str, Any]) -> dict[str, Tensor]:
    try:
        payload = path.read_bytes()
    except OSError as error:
        raise BadFile(f"{path} must be readable", f"{error.strerror}", "restore the file beside its JSON") from None
    if hashlib.sha256(payload).hexdigest() != header.get("weights_sha256"):
        raise BadFile(
            f"{path} must have the sha256 that {HEADER} records",
            "another one: the file is damaged or belongs to another posterior",
            "restore it from a copy, or refit",
        )
    try:
        return load_tensors(payload)
    except SafetensorError as error:
        raise BadFile(f"{path} must be a safetensors file", f"{error}", "restore it from a copy, or refit") from None


def _members(tensors: Mapping[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    members: list[dict[str, Tensor]] = [{} for _ in range(count)]
    for key, value in tensors.items():
        index, _, name = key.partition("/")
        members[int(index)][name] = value
    return members


def _check_fits(module: nn.Module, members: list[dict[str, Tensor]]) -> None:
    expected = {name: (tuple(value.shape), value.dtype) for name, value in module.state_dict().items()}
    for index, member in enumerate(members):
        got = {name: (tuple(value.shape), value.dtype) for name, value in member.items()}
        if got == expected:
            continue
        differing = sorted(set(got.items()) ^ set(expected.items()), key=str)
        raise BadInput(
            "the network must have the parameters that were saved",
            f"member {index} differs at {differing[0][0]}: {differing[0][1]}",
            "give the same network, with the same options, as in training",
        )


def state_to(state: Mapping[str, Tensor], device: torch.device | str) -> dict[str, Tensor]:
    """A detached copy of a state on ``device``."""
    return {name: value.detach().to(device, copy=True) for name, value in state.items()}
