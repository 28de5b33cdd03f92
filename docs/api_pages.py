"""The API reference: the public names, grouped by the verb they belong to."""

from collections.abc import Sequence
from dataclasses import dataclass

# a package and a function in it have one name: the reader of sources takes the package.
PATHS = {"evaluate": "qbayes.metrics.evaluate.evaluate"}
INTRODUCTION = """# Python

Everything below is in `import qbayes as qb`. The verbs come in this order:
`load_task` → `fit` → `quantize` → `lower` → `load` → `predict` → `evaluate`.

| to | names |
|---|---|
{rows}

Modules for extensions and exports are imported by their own path:

| to | module |
|---|---|
{modules}
"""


@dataclass(frozen=True)
class ApiPage:
    """Public names of one verb, or modules that extensions import."""

    title: str
    slug: str
    lead: str
    names: Sequence[str] = ()
    modules: Sequence[str] = ()

    @property
    def path(self) -> str:
        return f"api/{self.slug}.md"

    def markdown(self) -> str:
        lines = [f"# {self.title}", "", self.lead, ""]
        for name in self.names:
            lines += [f"::: {PATHS.get(name, f'qbayes.api.{name}')}", ""]
        for module in self.modules:
            lines += [f"::: {module}", ""]
        return "\n".join(lines)


PAGES = (
    ApiPage(
        "Load data and networks",
        "load",
        "What is learnt, and by which network.",
        ("load_task", "Task", "network"),
    ),
    ApiPage(
        "Fit a posterior",
        "fit",
        "From a network to a Bayesian one.",
        ("fit", "method", "recipe", "Budget", "Checkpoint", "Method", "attach"),
    ),
    ApiPage(
        "Predict, save and load",
        "predict",
        "What a posterior answers, and how it is kept.",
        (
            "Posterior",
            "NetworkPosterior",
            "ProgramPosterior",
            "Predictive",
            "save_posterior",
            "load_posterior",
        ),
    ),
    ApiPage(
        "Quantise",
        "quantize",
        "From float to few bits, by calibration or fine-tuning.",
        (
            "quantize",
            "Precision",
            "FineTuning",
            "fine_tune",
            "prepare",
            "assign_bits",
            "BitBudget",
            "Assignment",
        ),
    ),
    ApiPage(
        "Lower and run",
        "lower",
        "From a quantised posterior to an integer program.",
        ("lower", "Program", "load"),
    ),
    ApiPage("Evaluate", "evaluate", "Scores on clean, shifted and OOD data.", ("evaluate", "Scores")),
    ApiPage("Run studies", "study", "Many runs from one file.", ("Study", "run_study", "results")),
    ApiPage(
        "Errors",
        "errors",
        "Every error says what must hold, what came, and what to do.",
        ("QbayesError", "BadInput", "BadFile", "RunFailed", "Interrupted"),
    ),
    ApiPage("Export", "export", "Programs as ONNX, C and web pages.", modules=("qbayes.export",)),
    ApiPage(
        "Methods",
        "methods",
        "The four methods with their equations, and what a method of your own derives from.",
        modules=(
            "qbayes.methods.base",
            "qbayes.methods.pointwise",
            "qbayes.methods.mcd",
            "qbayes.methods.bbb",
            "qbayes.methods.sghmc",
            "qbayes.posterior.sites",
        ),
    ),
    ApiPage(
        "Ops, observers, backends",
        "extend",
        "The base classes of what can be added.",
        modules=("qbayes.integer.ops.base", "qbayes.quant.observers", "qbayes.integer.backends.base"),
    ),
    ApiPage("Metrics", "metrics", "The scores themselves.", modules=("qbayes.metrics",)),
)


def index() -> str:
    def row(page: ApiPage) -> str:
        inside = page.names or page.modules
        return f"| [{page.title}]({page.slug}.md) | {', '.join(f'`{name}`' for name in inside)} |"

    named = "\n".join(row(page) for page in PAGES if page.names)
    modules = "\n".join(row(page) for page in PAGES if page.modules)
    return INTRODUCTION.format(rows=named, modules=modules)
