"""C kernels of training on a CPU: how they are compiled, and over how many threads they run.

They use the OpenMP library that torch has loaded. Nothing is contracted: the same bits on every processor.
"""

import ctypes
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from qbayes.native.folder import NoLibrary
from qbayes.native.library import Source, load

PTR, I64, I32, F32, F64 = (
    *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32),
    *(ctypes.c_float, ctypes.c_double),
)
_FLAGS = (
    *("-std=gnu99", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
    "-Wno-unknown-pragmas",
)
# elements below which a second thread costs more than it saves
_ALONE = 1 << 15


def training_source(name: str, path: Path, switch: str) -> Source:
    """The library of one C file."""
    return Source(
        name,
        path,
        included=(Path(__file__).with_name("numbers.h"),),
        # linked without OpenMP: its symbols are looked up in what the process has loaded.
        flags=((*_FLAGS, "-fopenmp"), _FLAGS),
        switch=switch,
    )


def load_functions(
    source: Source, signatures: Mapping[str, Sequence[object]], what: str
) -> ctypes.CDLL | None:
    """The library with its functions typed; None, which is said once, where it cannot be had.

    ``what`` runs in torch's operations then. Nothing is said where the switch is off.
    """
    try:
        library = load(source)
    except NoLibrary as missing:
        if os.environ.get(source.switch) != "off":
            warnings.warn(
                f"{what} on a CPU must have compiled kernels to be fast; there are none ({missing}): "
                "it runs in torch's operations, which is right and two to three times slower. Install a C "
                f"compiler, or set {source.switch}=off to leave it so.",
                stacklevel=3,
            )
        return None
    for name, types in signatures.items():
        function = getattr(library, f"qbayes_{name}")
        function.argtypes, function.restype = list(types), None
    return library


def threads_for(elements: int) -> int:
    """How many threads a pass over that many elements is worth."""
    return 1 if elements < _ALONE else torch.get_num_threads()
