"""Where tests of Triton kernels run: on a GPU, or anywhere by its interpreter (``TRITON_INTERPRET=1``)."""

import pytest
import torch
from torch import Tensor, nn

import qbayes as qb
from needs import ON_GPU
from qbayes.device import in_memory
from qbayes.posterior.reparametrize import c_draw, draw
from qbayes.quant.kernels import epilogue, fake_quantize, moving_average
from qbayes.quant.layers import weighted

DEVICE = "cuda" if ON_GPU else "cpu"
# the modules that ask whether kernels can read a tensor.
ASK = (fake_quantize, epilogue, moving_average, draw, weighted)


@pytest.fixture
def kernels_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, layers hand tensors of the CPU to the kernels; the library itself never does."""

    def on_a_gpu(x: Tensor) -> bool:
        return not torch.compiler.is_compiling() and in_memory(x)

    if not ON_GPU:
        for module in ASK:
            monkeypatch.setattr(module, "on_a_gpu", on_a_gpu)
            monkeypatch.setattr(module, "triton_works_on", lambda device: True, raising=False)
        # ε comes in the type of the layer's output, as on a GPU.
        monkeypatch.setattr(c_draw, "on_a_cpu", lambda x: False)


def to_train() -> tuple[nn.Module, qb.Task]:
    """A network and what it learns: small where the interpreter takes milliseconds for a thousand numbers."""
    if ON_GPU:
        task = qb.load_task("digits")
        return qb.network("lenet", task, style="relu"), task
    y = torch.arange(48) % 3
    x = torch.randn(48, 1, 6, 6) + y.view(-1, 1, 1, 1)
    task = qb.Task.from_arrays(x, y, x[:9], y[:9], kind="classification")
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)]
    return nn.Sequential(*layers), task
