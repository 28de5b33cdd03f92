"""The functions of a C file: how it is compiled, their C types, and over how many threads they run.

They use the OpenMP library that torch has loaded: a second one would bring threads of its own, which fight
for the cores.
"""

import ctypes
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from qbayes.native.folder import NoLibrary
from qbayes.native.library import Source, load

PTR, I64, I32, F32, F64 = (
    *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32),
    *(ctypes.c_float, ctypes.c_double),
)
U64, U32, U8 = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint8
_FLAGS = ("-std=gnu99", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-Wno-unknown-pragmas")
# nothing is contracted: the same bits on every processor.
UNCONTRACTED = ("-ffp-contract=off",)
# elements below which a second thread costs more than it saves
_ALONE = 1 << 15


def source_with_threads(
    name: str, path: Path, switch: str, included: Sequence[Path] = (), flags: Sequence[str] = ()
) -> Source:
    """The library of one C file with loops over threads; ``flags`` come to those that all have."""
    every = (*_FLAGS, *flags)
    # linked without OpenMP: its symbols are looked up in what the process has loaded.
    return Source(name, path, tuple(included), flags=((*every, "-fopenmp"), every), switch=switch)


def training_source(name: str, path: Path, switch: str) -> Source:
    """The library of one C file of training."""
    return source_with_threads(
        name, path, switch, included=[Path(__file__).with_name("numbers.h")], flags=UNCONTRACTED
    )


class Functions:
    """The functions of a library with their C types, by name without ``qbayes_``.

    Callers hand in dense tensors' addresses. Those that ``tell_failure`` give 1 where there was no memory.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        signatures: Mapping[str, Sequence[object]],
        tell_failure: Collection[str] = (),
    ) -> None:
        for name, types in signatures.items():
            function = getattr(library, f"qbayes_{name}")
            function.argtypes = list(types)
            function.restype = I32 if name in tell_failure else None
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the library has no function '{name}'")


def load_or_warn(source: Source, what: str) -> ctypes.CDLL | None:
    """The library; None, which is said once, where it cannot be had.

    ``what`` runs in torch's operations then. Nothing is said where the switch is off.
    """
    try:
        return load(source)
    except NoLibrary as missing:
        if os.environ.get(source.switch) != "off":
            warnings.warn(
                f"{what} on a CPU must have compiled kernels to be fast; there are none ({missing}): "
                "it runs in torch's operations, which is right and two to three times slower. Install a C "
                f"compiler, or set {source.switch}=off to leave it so.",
                stacklevel=3,
            )
        return None


def threads_for(elements: int, alone: int = _ALONE) -> int:
    """How many threads a pass over that many elements is worth."""
    return 1 if elements < alone else torch.get_num_threads()
