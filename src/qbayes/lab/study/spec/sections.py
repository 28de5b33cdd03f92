"""The sections of a run, ``[run.method]`` and the like: which keys each may hold, and what they mean.

A section is plain JSON here. ``check_section`` refuses what the verbs would refuse, before anything runs; the
functions below it turn sections into the values that the verbs take. ``choose`` says by what, and among which
values, held-out rows choose.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from qbayes.errors import BadInput, unknown_name
from qbayes.integer.backends.base import BACKENDS
from qbayes.methods import METHODS, make_method
from qbayes.methods.base import DEFAULT
from qbayes.metrics.choice import check_count
from qbayes.networks import NETWORKS
from qbayes.noise import check_seed
from qbayes.options import check_names, options_of, refuse_old_name
from qbayes.quant.finetune.checks import check_keeps
from qbayes.quant.finetune.fine_tuning import AnyTask, FineTuning
from qbayes.quant.mixed.costs import KINDS
from qbayes.quant.precision import Precision
from qbayes.tasks import DATASETS
from qbayes.tasks.dataset import check_options, find_dataset
from qbayes.training.budget import Budget

CHOOSE, BY, VALIDATION = "choose", "by", "validation"
OF_CHOICE = ("method", "training")
# lower is better in all of them; the first is the default.
SCORES_OF: Mapping[str, tuple[str, ...]] = {
    "regression": ("nll", "rmse", "crps"),
    "classification": ("nll", "error", "brier"),
}
MOST_CANDIDATES = 100
Section = Mapping[str, Any]
FLOAT = "float"
# the control: a float network with the fine-tuning that belongs to a precision, {finetuned = "W4A4"}.
FINETUNED = "finetuned"
# the precision of its rows: fine-tuned as a quantised network is, and never rounded.
CONTROL = "float-finetuned"
AUTO = "auto"
EVALUATE: Mapping[str, Any] = {
    "draws": 20,
    "seed": 0,
    "batch_size": 2048,
    "split": "test",
    "shifts": True,
    "confusion": True,
    "backend": "reference",
    "agreement": False,
}
# numbers of rows: unset, all of them are scored.
ROWS_OF: Mapping[str, str] = {"shift_rows": "shifts", "ood_rows": "confusion"}
# draws of an evaluation, and rows at once.
_MOST: Mapping[str, int] = {"draws": 100_000, "batch_size": 1 << 24}
_MOST_THREADS = 1024
# the method whose posterior, of the same network and seed, training starts from, and how that is trained.
START = "start"
START_TRAINING = "start_training"
OF_THE_START = (START, START_TRAINING)
# each layer has bits of its own, within the cost of the run's precision.
MIXED = "mixed"
# sections in which a table of another name takes the place of the run's; elsewhere tables are merged.
NAMED = ("task", "network", "method")
_OPTIONS_OF_NPZ = ("kind", "validation", "seed", "standardize", "labels", "input_range", "shifts")
# what build_network gives a factory besides the options.
_NOT_OPTIONS = ("input_shape", "outputs", "kind")


def check_choose(value: Any) -> None:
    """Raise unless ``value`` can stand under ``[run]`` as ``choose``.

    [run] may say how is chosen, and the axes among what: how many candidates there are, and what a method
    takes, is checked where the runs are planned.
    """
    given = _table(value, CHOOSE)
    for key in given:
        if key not in (BY, VALIDATION, *OF_CHOICE):
            raise unknown_name("key of choose", key, (BY, VALIDATION, *OF_CHOICE))
    scores = sorted({score for known in SCORES_OF.values() for score in known})
    if BY in given and given[BY] not in scores:
        raise unknown_name("score to choose by", str(given[BY]), scores)
    share = given.get(VALIDATION, 0.1)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise BadInput(
            "choose: validation must be a share of the training rows, above 0 and below 1",
            f"{share!r}",
            "write validation = 0.1",
        )
    for section in OF_CHOICE:
        for key, values in _table(given.get(section, {}), f"{CHOOSE}.{section}").items():
            where = f"{CHOOSE}.{section}.{key}"
            if key == "name":
                raise BadInput("a choice must stay with the run's method", where, "vary method in [axes]")
            if not isinstance(values, list) or not values:
                raise BadInput(
                    f"{where} must be a list of values", f"{values!r}", f"write {key} = [0.1, 0.2]"
                )


def _table(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadInput(f"{name} must be a table", f"{value!r}", f"write {name} = {{…}}")
    return value


def check_section(name: str, value: Any) -> None:
    """Raise BadInput unless ``value`` can stand under ``[run]`` as ``name``."""
    if name not in SECTIONS:
        raise refuse_old_name(name, SECTIONS) or unknown_name("key of [run]", name, SECTIONS)
    SECTIONS[name](value)


def _check_task(value: Any) -> None:
    name, options = named(value, "task", "digits")
    if name.endswith(".npz"):
        check_options(name, dict.fromkeys(_OPTIONS_OF_NPZ), options)
        return
    dataset, _ = find_dataset(name)
    check_options(name, dataset.options(), options)


def _check_network(value: Any) -> None:
    name, options = named(value, "network", "lenet")
    known = options if ":" in name else network_options(name)
    for option in options:
        if option not in known:
            raise unknown_name(f"option of the network {name}", option, known)


def network_options(name: str) -> dict[str, inspect.Parameter]:
    """The options of one of our networks, by name."""
    parameters = inspect.signature(NETWORKS[name]).parameters
    return {key: value for key, value in parameters.items() if key not in _NOT_OPTIONS}


def _check_method(value: Any) -> None:
    name, options = named(value, "method", "mcd")
    preset = options.pop("preset", "default")
    known = {DEFAULT, *(key.partition("/")[0] for key in METHODS[name].all_presets())}
    if preset not in known:
        raise unknown_name(f"preset of {name}", str(preset), known)
    make_method(name, **options)


def _check_training(value: Any) -> None:
    given = table(value, "training")
    if START_TRAINING in given:
        if START not in given:
            raise BadInput(
                "start_training needs the method to start from", "no start", 'write start = "pointwise"'
            )
        Budget.from_options({"epochs": 1}, **table(given.pop(START_TRAINING), "training.start_training"))
    if START in given:
        _check_method(given.pop(START))
    Budget.from_options({"epochs": 1}, **given)


def _check_precision(value: Any) -> None:
    if value == FLOAT:
        return
    precision = precision_of(value)
    if is_control(value):
        check_keeps(precision)


def _check_quantize(value: Any) -> None:
    given = table(value, "quantize")
    check_names("quantize", given, (*options_of(FineTuning), MIXED))
    if MIXED in given and given[MIXED] not in KINDS:
        raise unknown_name("budget of mixed precision", str(given[MIXED]), KINDS)
    fine_tuning_of(given)


def _check_evaluate(value: Any) -> None:
    settings = table(value, "evaluate")
    for key, given in settings.items():
        if key in ROWS_OF:
            check_count(key, given)
            continue
        if key not in EVALUATE:
            raise unknown_name("key of evaluate", key, (*EVALUATE, *ROWS_OF))
        wanted = type(EVALUATE[key])
        if type(given) is not wanted:
            raise BadInput(f"{key} must be of type {wanted.__name__}", f"{given!r}", f"try {EVALUATE[key]!r}")
    whole = {**EVALUATE, **settings}
    for key, most in _MOST.items():
        if not 1 <= whole[key] <= most:
            raise BadInput(f"{key} must be from 1 to {most:,}", f"{whole[key]}", f"try {EVALUATE[key]}")
    check_seed(whole["seed"])
    if whole["backend"] not in (*BACKENDS, AUTO):
        raise unknown_name("backend", whole["backend"], (*BACKENDS, AUTO))


def _check_threads(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_THREADS:
        raise BadInput(f"threads must be a whole number from 1 to {_MOST_THREADS}", f"{value!r}", "try 1")


SECTIONS: Mapping[str, Callable[[Any], object]] = {
    "task": _check_task,
    "network": _check_network,
    "method": _check_method,
    "training": _check_training,
    CHOOSE: check_choose,
    "precision": _check_precision,
    "quantize": _check_quantize,
    "evaluate": _check_evaluate,
    "seed": check_seed,
    "threads": _check_threads,
}
NEEDED = ("task", "network", "method")
DEFAULTS: Mapping[str, Any] = {
    "training": {},
    CHOOSE: {},
    "precision": FLOAT,
    "quantize": {},
    "evaluate": {},
    "seed": 0,
    "threads": 1,
}


def named(value: Any, section: str, example: str) -> tuple[str, dict[str, Any]]:
    """The name in a section and its other keys; a string alone is a name."""
    if isinstance(value, str):
        return value, {}
    settings = table(value, section)
    name = settings.pop("name", None)
    if not isinstance(name, str) or not name:
        raise BadInput(f"{section} must have a name", f"name = {name!r}", f'for example name = "{example}"')
    return name, settings


def table(value: Any, section: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise BadInput(
            f"{section} must be a table", f"{value!r}", f"write [run.{section}] and its keys below"
        )
    return dict(value)


def start_of(run: Section) -> Section | None:
    """The run whose float posterior this one's training starts from.

    It is trained as ``start_training`` says, and as its method's preset has it where that says nothing.
    """
    training = run["training"]
    if START not in training:
        return None
    return {**run, "method": training[START], "training": training.get(START_TRAINING, {})}


def is_control(value: Any) -> bool:
    """Whether a precision is that of a float network with the fine-tuning of a quantised one."""
    return isinstance(value, Mapping) and FINETUNED in value


def label_of(value: Any) -> str:
    """What rows call a precision: ``float``, ``float-finetuned``, ``W4A4``."""
    if value == FLOAT:
        return FLOAT
    return CONTROL if is_control(value) else precision_of(value).label


def precision_of(value: Any) -> Precision:
    """``"W4A4"``, or a table with bits and options, from the preset it names.

    Of the control, ``{finetuned = …}``, it is the precision whose fine-tuning it has.
    """
    if is_control(value):
        return _precision_of_control(value)
    if value == CONTROL:
        raise BadInput(
            "the float network that is fine-tuned must have the fine-tuning of some precision",
            f'precision = "{CONTROL}"',
            f'write precision = {{{FINETUNED} = "W4A4"}}',
        )
    return Precision.parse(value if isinstance(value, str) else table(value, "precision"))


def _precision_of_control(value: Mapping[str, Any]) -> Precision:
    like = value[FINETUNED]
    if set(value) != {FINETUNED} or like == FLOAT or is_control(like):
        raise BadInput(
            f"{FINETUNED} must name a precision with bits, and stand alone",
            f"{dict(value)!r}",
            f'write precision = {{{FINETUNED} = "W4A4"}}',
        )
    return precision_of(like)


def scheme_of(value: Any, mixed: str | None = None) -> str:
    """The preset of a precision and what differs from it besides the bits: ``default, mask=product``."""
    if value == FLOAT:
        return FLOAT
    if is_control(value):
        # as what it was fine-tuned: its precision, and what is not the default there.
        like = value[FINETUNED]
        changed = scheme_of(like).removeprefix("default").removeprefix(", ")
        return ", ".join(part for part in (f"as {precision_of(like).label}", changed) if part)
    options = {} if isinstance(value, str) else {**value}
    preset = options.pop("preset", "default")
    if mixed is not None:
        options[MIXED] = mixed
    changed = [f"{key}={options[key]}" for key in sorted(options) if key not in ("weight", "activation")]
    return ", ".join([preset, *changed])


def fine_tuning_of(value: Any) -> FineTuning:
    """What a quantize section gives; the recipe of its preset decides the rest."""
    given = table(value, "quantize")
    given.pop(MIXED, None)
    return FineTuning.from_options(given)


def mixed_of(value: Any) -> str | None:
    """What the precision of a quantize section limits, where layers have bits of their own."""
    return table(value, "quantize").get(MIXED)


def is_trained(value: Any) -> bool:
    """Whether a quantize section trains: with no epochs it only calibrates."""
    return fine_tuning_of(value).resolve().epochs > 0


def training_of(value: Any, task: str) -> str:
    """How a quantize section trains: not (``calibrated``), or as the task's recipe does (``trained``).

    ``labels`` is training without the distillation that the recipe has, ``imitation`` with one that it has
    not.
    """
    if not is_trained(value):
        return "calibrated"
    family = task.split("/", maxsplit=1)[0]
    if family not in DATASETS:
        return "trained"
    known, given = AnyTask(DATASETS[family].kind, task), fine_tuning_of(value)
    usual = FineTuning(preset=given.preset).resolve(task=known).distill
    share = given.resolve(task=known).distill
    if (share > 0) == (usual > 0):
        return "trained"
    return "imitation" if share > 0 else "labels"
