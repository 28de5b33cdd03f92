"""Every call of the library that golden answers need: where a name of the library changes, this file follows.

Nothing else in this package imports ``qbayes``. What is given back are tensors, arrays and plain numbers.
"""

import functools
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import qbayes as qb
from golden.whole import Whole, whole_rows
from handmade.programs import every_op
from handmade.random_programs import random_case
from parity.c_build import compiled
from qbayes import noise
from qbayes.export.c.selftest import record
from qbayes.export.float_onnx import float_model, float_noise_sites
from qbayes.export.onnx import Options, export_onnx, noise_feeds, open_exported
from qbayes.integer.arithmetic.epsilon_table import epsilon_codes
from qbayes.integer.posterior import ProgramPosterior
from qbayes.lab.study.spec.study import study_file
from qbayes.metrics.scores import is_score
from zoo.refused import REFUSED
from zoo.tasks import TASKS, ZOO

Posterior = qb.NetworkPosterior
Program = qb.Program
Refusal = qb.QbayesError
Numbers = Mapping[str, float]

NETWORKS = tuple(ZOO)
REFUSED_NETWORKS = tuple(REFUSED)
SEED, ROWS, DRAWS = 5, 6, 3
# every backend for CPUs, and for each spelling of ONNX the runtime that it is made for.
BACKENDS = ("reference", "onednn", "onnxruntime", "openvino")
RUNTIME_OF = {"qoperator": "onnxruntime", "qdq": "openvino"}
# scores that a difference is read from, and the columns that say which run a row is.
TOLD = ("error", "nll", "ece", "entropy", "rmse", "crps")
WHICH = ("method", "precision", "training", "seed", "fold")

_TRAIN, _TEST = 160, 48
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "pointwise": {},
    "mcd": {"rate": 0.2},
    # so short a training hardly moves σ: it begins where draws differ in 4 bits too.
    "bbb": {"prior_sigma": 0.3, "kl_weight": 0.1, "sigma_linear": 0.05, "sigma_conv": 0.05},
    "sghmc": {"members": 2, "every": 1},
}
METHODS = tuple(_OPTIONS)


# ---- tasks, posteriors, what they answer


@functools.cache
def task(network: str) -> qb.Task:
    """The first rows of the zoo's task for the network."""
    whole = TASKS[ZOO[network].task]()
    (x, y), (x_test, y_test) = (next(iter(whole.batches(split, 10_000))) for split in ("train", "test"))
    few = (x[:_TRAIN], y[:_TRAIN], x_test[:_TEST], y_test[:_TEST])
    return qb.Task.from_arrays(*few, kind=whole.kind, name=f"golden-{whole.name}")


def inputs(network: str) -> Tensor:
    return next(iter(task(network).batches("test", ROWS)))[0].float()


def fit(network: str, method: str) -> Posterior:
    _same_start()
    budget = qb.Budget(epochs=3, batch_size=32, learning_rate=1e-2)
    made = qb.method(method, **_OPTIONS[method])
    how: dict[str, Any] = {"seed": 3, "device": "cpu", "progress": False}
    return qb.fit(ZOO[network].build, task(network), made, budget, **how)


def quantize(posterior: Posterior, network: str, bits: tuple[int, int], *, trained: bool) -> Posterior:
    """On grids of so many bits for weights and activations; calibrated only, or an epoch of training."""
    _same_start()
    tuning = qb.FineTuning(epochs=int(trained), batch_size=32, learning_rate=1e-3, clip=1.0)
    precision = qb.Precision(weight=bits[0], activation=bits[1])
    how: dict[str, Any] = {"seed": 4, "device": "cpu", "progress": False}
    return qb.quantize(posterior, task(network), precision, tuning, **how)


def lower(posterior: Posterior) -> Program:
    return qb.lower(posterior)


def predicted(posterior: qb.Posterior, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The draws, and what follows from them; rows in the middle of a data set."""
    found = posterior.predict(x, draws=DRAWS, seed=SEED, first_row=7)
    return found.draws, [found.mean, found.variance, found.entropy, found.mutual_information]


def scores(posterior: qb.Posterior, network: str) -> Numbers:
    return qb.evaluate(posterior, task(network), draws=DRAWS, seed=SEED).flat()


# ---- programs on backends, as C, as ONNX


def loaded(program: Program, backend: str) -> ProgramPosterior:
    return qb.load(program, backend)


def op_codes(posterior: ProgramPosterior, x: Tensor, draws: int = DRAWS) -> list[Tensor]:
    """The codes of every op of every member, in the order in which they ran."""
    interpreter, program, found = posterior.interpreter, posterior.program, list[Tensor]()
    for index, member in enumerate(program.members[:draws]):
        mine = list(range(index, draws, len(program.members)))
        weights = interpreter.weights(index, mine, SEED)
        codes = interpreter.input_codes(x, member)
        interpreter.run(index, codes, mine, SEED, 0, weights, lambda *seen: found.append(seen[-1].clone()))
    return found


def in_integers(program: Program, x: Tensor, draws: int = DRAWS) -> tuple[Tensor, list[Tensor]]:
    """By the reference: the heads' codes ``(rows, draws, codes)``; mean, variance and entropy in integers."""
    truth = record(program, len(x), draws, SEED, x)
    return truth.outputs, [truth.answer.mean, truth.answer.variance, truth.answer.entropy]


def in_c(program: Program, x: Tensor, draws: int = DRAWS) -> tuple[Tensor, list[Tensor]]:
    """The same by exported C, which a compiler of this machine made into a library."""
    made, given = compiled(program, "-O0"), record(program, len(x), 1, SEED, x).inputs.numpy()
    codes = made.draws(given, draws, SEED)
    return _whole(codes), [_whole(part) for part in made.predict(given, draws, SEED)]


def in_onnx(program: Program, dialect: str, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """By an exported model with its noise as inputs: the heads' codes, and the statistics in the graph."""
    told = ("codes", "mean", "variance", "entropy", "mutual_information")
    with tempfile.TemporaryDirectory() as folder:
        (path,) = export_onnx(program, Path(folder) / "m.onnx", Options(dialect, "inputs", DRAWS, told))
        model = open_exported(path, RUNTIME_OF[dialect], threads=1)
    found = model(x, noise_feeds(program, len(x), range(DRAWS), seed=SEED))
    heads = [found[name] for name in model.outputs if name not in told[1:]]
    return [_whole(head) for head in heads], [torch.from_numpy(found[name]) for name in told[1:]]


def in_float_onnx(posterior: Posterior, x: Tensor) -> list[Tensor]:
    """By the float posterior as a model for ONNX Runtime, with its noise as inputs."""
    import onnxruntime

    told = ("draws", "mean", "variance", "entropy", "mutual_information")
    model, ids = float_model(posterior, Options("qoperator", "inputs", DRAWS, told)), torch.arange(DRAWS)
    feeds = {"x": x.numpy()}
    for site in float_noise_sites(posterior).values():
        if site.kind == "mask":
            threshold = noise.keep_threshold(site.rate)
            drawn = noise.keep_masks(ids, SEED, site.site, 0, len(x), site.shape[0], threshold)
            feeds[site.name] = drawn.to(torch.uint8).numpy()
        else:
            feeds[site.name] = noise.gaussians(SEED, site.site, ids, site.shape).numpy()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [torch.from_numpy(np.asarray(found)) for found in session.run(list(told), feeds)]


def _whole(codes: np.ndarray) -> Tensor:
    return torch.from_numpy(codes.astype(np.int64))


# ---- what is the same on every processor


def handmade(bits: int, out_bits: int | None) -> tuple[Program, Tensor]:
    """A program with every op, of two members, and rows for it."""
    make = every_op(bits, members=2, out_bits=out_bits)
    return make.program(make.ops[-1].output), make.inputs(4)


def random_program(seed: int) -> tuple[Program, Tensor, int]:
    case = random_case(seed)
    return case.program, case.x.float(), case.draws


def noise_streams() -> Iterator[tuple[str, Tensor]]:
    """Masks and codes of ε by seed and site; rows in the middle of a data set."""
    draws = torch.arange(4)
    for seed, site in ((0, 1), (7, 3), (2**63 - 12, 12)):
        key, threshold = noise.check_seed(seed), noise.keep_threshold(0.25)
        yield f"mask {seed} {site}", noise.keep_masks(draws, key, site, 5, 9, 17, threshold)
        yield f"epsilon {seed} {site}", epsilon_codes(key, site, draws, (6, 5), 8)


def quantised_whole(method: str, bits: tuple[int, int]) -> tuple[Program, Tensor]:
    """The program of ``Whole``, calibrated by the least and largest values, and rows for it."""
    _same_start()
    x, y = whole_rows()
    small = qb.Task.from_arrays(x, y, x, y, kind="classification", standardize=False, name="golden-whole")
    attached = qb.attach(Whole(), qb.method(method, **_OPTIONS[method]), x[:4])
    ranges = {"weight_range": "minmax", "activation_range": "minmax"}
    precision = qb.Precision(weight=bits[0], activation=bits[1], **ranges)  # pyright: ignore[reportArgumentType]
    posterior = qb.Posterior.from_trained(attached, small.signature)
    how: dict[str, Any] = {"seed": 4, "device": "cpu", "progress": False}
    tuning = qb.FineTuning(epochs=0, batch_size=64)
    return qb.lower(qb.quantize(posterior, small, precision, tuning, **how)), x[:ROWS]


def kind_of(error: qb.QbayesError) -> str:
    """The class that users know: one of ours alone goes by what it derives from."""
    return next(known.__name__ for known in type(error).mro() if not known.__name__.startswith("_"))


def quantise_refused(network: str, method: str) -> None:
    """Ask for integers of a network that has none."""
    case = REFUSED[network]
    _same_start()
    made = TASKS[case.task]()
    attached = qb.attach(case.build(), qb.method(method, **_OPTIONS[method]), made.example(4))
    posterior = qb.Posterior.from_trained(attached, made.signature)
    qb.quantize(posterior, made, finetuning=qb.FineTuning(epochs=0), device="cpu", progress=False)


# ---- studies


def study_rows(name: str) -> list[tuple[str, Numbers]]:
    """What a small version of a study of the demo found: which run it is, and its scores."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = qb.run_study(_small(name), Path(folder) / name, device="cpu", workers=1)
        assert outcome.failed == 0, outcome.reasons
        rows: Sequence[Mapping[Any, Any]] = qb.results(Path(folder) / name).to_dict("records")
    return [
        (" ".join(str(row[column]) for column in WHICH), {key: row[key] for key in row if is_score(key)})
        for row in rows
    ]


def _small(name: str) -> qb.Study:
    """All methods and precisions of the study, of two seeds or splits, with short trainings."""
    content = tomllib.loads(study_file(name).read_text(encoding="utf-8"))
    run, axes = content["run"], content["axes"]
    run["evaluate"] = {**run.get("evaluate", {}), "draws": 4}
    if name == "diabetes":
        axes["task"] = [{"name": "diabetes", "split": [0, 1]}]
        run["training"] = {"epochs": 20}
    else:
        axes["seed"], run["quantize"] = [0, 1], {"epochs": 1, "least_steps": 0}
        for place in axes["method + training"]:
            place["training"] = {**place["training"], "epochs": 2}
            place["method"] |= {"members": 2, "every": 1} if place["method"]["name"] == "sghmc" else {}
    return qb.Study.from_content(content, name)


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums of small tensors in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _same_start() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
