"""Programs on disk: one ``.qbayes`` file, a safetensors file of two tensors with a JSON text beside them.

- ``codes``, uint8 ``(members, bytes)``: row i is the packed constants of member i (see ``program_record``);
- ``scales``, float32 ``(members, values + Gaussian ops)``: what the codes mean;
- in the metadata ``qbayes``, a JSON text ``{"sha256":…,"program":…}``; the hash is over the program's text
  and both tensors. One entry, as safetensors writes several in any order: equal programs make equal files.

A file is opened without trusting it. Nothing is unpickled or run, sizes are limited before anything is
allocated, the text must be exactly the one that writing the opened program gives (so that nothing goes
unread), and whatever the hash says, ``verify`` proves the program before anyone may run it.
"""

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from qbayes.errors import BadFile, BadInput
from qbayes.integer.file.member_record import pack_member, scale_row, unpack_members
from qbayes.integer.file.record import (
    RESTORE,
    parse_json,
    read_text,
    refuse,
    write_text,
)
from qbayes.integer.proof.verify import verify, verify_members
from qbayes.integer.structure.program_data import ProgramData
from qbayes.posterior.storage.save import write_atomically

SUFFIX = ".qbayes"
LARGEST_FILE = 1 << 34  # bytes
LARGEST_HEADER = 1 << 24
_LONGEST_PART = 400  # characters of a message
_ENTRY = "qbayes"
_BEFORE, _BETWEEN, _AFTER = '{"sha256":"', '","program":', "}"
_HASH = slice(len(_BEFORE), len(_BEFORE) + 64)


def save_program(program: ProgramData, path: str | Path) -> Path:
    """Write ``program``; a reader sees the old file or the new one, whole."""
    path = Path(path)
    verify(program)
    text = write_text(program)
    packed = bytearray(b"".join(pack_member(program, member) for member in program.members))
    scales = [scale_row(program, member) for member in program.members]
    tensors = {
        "codes": torch.frombuffer(packed, dtype=torch.uint8).view(len(program.members), -1),
        "scales": torch.tensor(scales, dtype=torch.float32),
    }
    entry = f"{_BEFORE}{content_hash(text, tensors)}{_BETWEEN}{text}{_AFTER}"
    write_atomically(path, save_tensors(tensors, {_ENTRY: entry}))
    return path


def open_program(path: str | Path) -> ProgramData:
    """Read and prove a program; raises BadFile for everything that is not one."""
    path = Path(path)
    payload = _read(path)
    try:
        text, tensors = _contents(payload)
        del payload  # the tensors are copies: a large program would be held twice
        program = read_text(text)
        program.members.extend(unpack_members(program, tensors["codes"], tensors["scales"]))
        verify_members(program)
        if write_text(program) != text:
            refuse("the JSON of a program must be written as qbayes writes it", "other spelling or entries")
    except BadFile as error:
        raise BadFile(_short(error.must), f"{_short(error.got)} (in {path})", error.do) from None
    except BadInput as error:
        must = f"a program must be right: {_short(error.must)}"
        raise BadFile(must, f"{_short(error.got)} (in {path})", RESTORE) from None
    return program


def _short(words: str) -> str:
    """A file may hold numbers, texts and lists of any length; a message shows where they begin."""
    return words if len(words) <= _LONGEST_PART else f"{words[:_LONGEST_PART]} …"


def content_hash(text: str, tensors: Mapping[str, Tensor]) -> str:
    """sha256 over the JSON text and the tensors with their shapes."""
    digest = hashlib.sha256(f"{len(text)}:{text}".encode())
    for name in ("codes", "scales"):
        digest.update(f"{name}{tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].reshape(-1).numpy().data)
    return digest.hexdigest()


def _read(path: Path) -> bytes:
    """The bytes of a regular file of a sane size: a device or a pipe could go on for ever."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                refuse("a program must be a regular file", f"a device or pipe: {path}", "check the path")
            if found.st_size > LARGEST_FILE:
                refuse(f"a program must take at most {LARGEST_FILE} bytes", f"{found.st_size}: {path}")
            return file.read(found.st_size)  # all of LARGEST_FILE would be reserved before anything is read
    except OSError as error:
        reason = f"{path}: {error.strerror or error}"
    except ValueError as error:  # a path with a null byte
        reason = f"{path!s:.80}: {error}"
    return refuse("a program's file must be readable", reason, "give a file that Program.save wrote")


def _without_waiting(path: str, flags: int) -> int:
    # opening a pipe that nobody writes to would block before one can see that it is none.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _contents(payload: bytes) -> tuple[str, dict[str, Tensor]]:
    """The JSON text and the tensors, when the file is one of ours and its hash is right."""
    text, recorded = _metadata(payload)
    try:
        tensors = load_tensors(payload)
    except (SafetensorError, RuntimeError, ValueError, OverflowError) as error:
        refuse("the file must be a whole safetensors file", f"{error}"[:200])
    if content_hash(text, tensors) != recorded:
        refuse("the file must have the sha256 that it records", "another one: it is damaged or was edited")
    return text, tensors


def _metadata(payload: bytes) -> tuple[str, str]:
    size = int.from_bytes(payload[:8], "little")
    if not 2 <= size <= min(LARGEST_HEADER, len(payload) - 8):
        refuse("the file must be a qbayes program", "no header of a safetensors file")
    layout = parse_json(payload[8 : 8 + size], "the header of the file")
    metadata: Any = layout.pop("__metadata__", None)
    if not isinstance(metadata, dict) or set(metadata) != {_ENTRY}:
        refuse("the file must be a qbayes program", "a safetensors file of another kind", "check the path")
    # checked before safetensors reads them: it knows types that torch does not.
    kinds = {name: part.get("dtype") if isinstance(part, dict) else None for name, part in layout.items()}
    if kinds != {"codes": "U8", "scales": "F32"}:
        refuse("a program must hold the tensors codes (U8) and scales (F32)", f"{kinds}"[:200])
    entry = metadata[_ENTRY]
    if not isinstance(entry, str) or not entry.isascii():
        refuse("the entry of a program must be a text in ASCII", type(entry).__name__)
    text = entry[_HASH.stop + len(_BETWEEN) : -len(_AFTER)]
    if entry != f"{_BEFORE}{entry[_HASH]}{_BETWEEN}{text}{_AFTER}":
        refuse("the entry of a program must begin with its sha256", f"{entry[:80]!r}")
    return text, entry[_HASH]
