"""Where tests of Triton kernels run: on a GPU, or anywhere by its interpreter (``TRITON_INTERPRET=1``)."""

import importlib.util
import os

import pytest
import torch

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
runs_kernels = pytest.mark.skipif(not (ON_GPU or INTERPRETED), reason="needs a GPU or Triton's interpreter")
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
