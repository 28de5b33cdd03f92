"""One draw of LeNet with Gaussian weights, batch 1: bayesian-torch beside ours, in turn in one process.

bayesian-torch is no dependency of ours; give the benchmark an environment of its own:

    python -m venv bench-env && bench-env/bin/pip install . bayesian-torch
    bench-env/bin/python benchmarks/bayesian_torch_lenet.py [--threads 2] [--seconds 20] [--precision W8A8]

The same network (LeNet with biases and ReLU, 1×28×28) is given to both. bayesian-torch draws weights and
biases in each forward pass: in float, and by its post-training int8 where that runs with the torch at hand.
Ours answers ``predict`` with L draws on the backend onednn, noise included, and is divided by L; ``frozen``
keeps the weights of the L draws from an earlier call. Times are those of the fastest calls.
"""

import argparse
import copy
import json
import warnings

import torch
from torch import Tensor, nn

from qbayes.bench.subjects import make_subject, network_choice
from qbayes.bench.timing import Way, interleaved
from qbayes.integer.posterior import load
from qbayes.networks import build_network
from qbayes.quant.precision import Precision

_CONVERSION = {
    "prior_mu": 0.0,
    "prior_sigma": 1.0,
    "posterior_mu_init": 0.0,
    "posterior_rho_init": -3.0,
    "type": "Reparameterization",
    "moped_enable": True,
    "moped_delta": 0.1,
}
_CALIBRATION_PASSES = 8


def their_float(plain: nn.Module) -> nn.Module:
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn

    network = copy.deepcopy(plain)
    dnn_to_bnn(network, _CONVERSION)
    return network.eval()


def their_int8(network: nn.Module, rows: Tensor) -> nn.Module:
    """Its recipe: observers in every Gaussian layer, some passes, conversion."""
    from bayesian_torch.ao.quantization.quantize import convert, enable_prepare

    prepared = copy.deepcopy(network)
    enable_prepare(prepared)
    prepared.qconfig = torch.ao.quantization.get_default_qconfig("onednn")
    prepared = torch.ao.quantization.prepare(prepared)
    for _ in range(_CALIBRATION_PASSES):
        prepared(rows)
    converted = convert(prepared)
    converted(rows[:1])
    return converted


def ways(precision: Precision, draws: int) -> tuple[dict[str, Way], dict[str, str]]:
    """What is timed, and what could not be with the reason."""
    torch.manual_seed(0)
    choice = network_choice("lenet")
    plain = build_network(choice.name, choice.input_shape, choice.outputs, **choice.options).eval()
    x = choice.rows(1)
    rows = (choice.rows(16).float() - 127.5) / 74.0
    theirs = their_float(plain)
    program = make_subject("lenet", "bbb", precision).program
    ours, frozen = load(program, "onednn"), load(program, "onednn", frozen_draws=draws)
    found = {
        "plain_float": Way(lambda: plain(rows[:1]), 1),
        "bayesian_torch_float": Way(lambda: theirs(rows[:1]), 1),
        "qbayes_onednn": Way(lambda: ours.predict(x, draws), draws),
        "qbayes_frozen": Way(lambda: frozen.predict(x, draws), draws),
    }
    missing: dict[str, str] = {}
    try:
        converted = their_int8(theirs, rows)
        found["bayesian_torch_int8"] = Way(lambda: converted(rows[:1]), 1)
    except (AttributeError, ImportError, RuntimeError, TypeError, ValueError) as error:
        missing["bayesian_torch_int8"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return found, missing


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--precision", default="W8A8")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    warnings.filterwarnings("ignore", category=UserWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    weight, activation = asked.precision.upper().lstrip("W").split("A")
    found, missing = ways(Precision(weight=int(weight), activation=int(activation)), asked.draws)
    times = interleaved(found, asked.seconds)
    best = {name: 1e3 * each.best for name, each in times.items()}
    theirs = [name for name in best if name.startswith("bayesian_torch")]
    report = {
        "precision": asked.precision,
        "threads": asked.threads,
        "milliseconds_a_draw": {name: round(value, 3) for name, value in best.items()},
        "calls": {name: len(each.seconds) for name, each in times.items()},
        "share_of_theirs": {
            f"{ours}/{their}": round(best[ours] / best[their], 4)
            for ours in ("qbayes_onednn", "qbayes_frozen")
            for their in theirs
        },
        "aims": {"qbayes_onednn": 1 / 3, "qbayes_frozen": 0.1},
        "not_measured": missing,
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
