"""The tables of docs/results/cifar10.md: two networks, our recipe and the paper's."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

from published_cifar_beside import beside, labels, shifts, uncertainty
from published_cifar_gpu import ablation, standard
from published_cifar_hours import hours
from published_cifar_ours import aims, epochs_of, float_table
from published_cifar_poster import grid
from published_cifar_predictions import batches, predictions
from published_cifar_rows import (
    MIXED,
    NETWORKS,
    Change,
    Held,
    Network,
    apart,
    each,
    legend_of,
    named_once,
    or_not_run,
)
from published_cifar_speed import speed
from published_cifar_summary import PICTURES, summary
from published_claims import OF_PAGE, Found, judge_frames, judged
from published_images import ECE, ERROR, NLL
from published_numbers import (
    EQUAL,
    METHODS,
    NONE,
    Lines,
    Missing,
    Studies,
    mean_and_deviation,
    named,
    number,
    table,
)

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.pairs import Pair, score

DIGITS = "mnist"


def stand(studies: Studies) -> Lines:
    """How many of the planned runs the page stands on."""
    rows = []
    for network in NETWORKS:
        if network.study not in studies:
            rows.append([f"`{network.study}`", network.words, *[NONE] * 4, "not run yet"])
            continue
        frame = studies[network.study].frame
        seeds = ", ".join(map(str, frame.values("seed"))) or NONE
        left = frame.planned - len(frame.rows) - len(frame.failed)
        counts = [f"{len(frame.rows)} of {frame.planned}", str(len(frame.failed)), seeds]
        cells = [
            *counts,
            ", ".join(_origin(frame)) or NONE,
            "complete" if left == 0 else f"{left} runs to come",
        ]
        rows.append([f"[`{network.study}`]({network.study}.csv)", network.words, *cells])
    head = ["study", "network", "runs done", "failed", "seeds", "computed by", ""]
    return [*table(head, rows), *_failures(studies)]


def _failures(studies: Studies) -> Lines:
    """The runs that failed, with their reasons: they are in no mean."""
    lines = [
        f"- `{network.study}`: {named(str(row['method']))} {row['precision']} ({row['scheme']}), seed "
        f"{row['seed']}, failed: {row['reason']}."
        for network in NETWORKS
        if network.study in studies
        for row in studies[network.study].frame.failed
    ]
    return ["", "Runs that failed are in no mean:", "", *lines] if lines else []


def _origin(frame: Frame) -> Sequence[str]:
    """Commits, devices, processors and backends of the rows, each once."""
    commits = [f"commit {str(commit)[:10]}" for commit in frame.values("commit")]
    backends = [f"backend {backend}" for backend in frame.values("backend") if backend != "float"]
    columns = ("device", "processor", "instructions")
    return [*commits, *(str(value) for name in columns for value in frame.values(name)), *backends]


def mixed(held: Held) -> Lines:
    """Bits by layer less equal bits of the same bytes, paired."""
    rows, changes = [], list[Change]()
    for method in held.methods:
        for bits in held.ours.present("precision", EQUAL):
            uniform = held.ours.pairs(method=method, precision=bits)
            chosen = held.ours.pairs(method=method, precision=bits, scheme=MIXED)
            if not chosen or not uniform:
                continue
            sizes = [number(_mean(some, "bytes", 1e-3), 1) for some in (chosen, uniform)]
            errors = [number(_mean(some, "error", 100), 2) for some in (chosen, uniform)]
            less = [apart(chosen, uniform, name, factor) for name, _, factor, _ in (ERROR, NLL, ECE)]
            changes += less
            texts = [one.text(of[3]) for one, of in zip(less, (ERROR, NLL, ECE), strict=True)]
            rows.append([named(method), bits, " / ".join(sizes), " / ".join(errors), *texts])
    if not rows:
        raise Missing("no run has bits by layer")
    legend = (
        "Two numbers are those of bits by layer and of equal bits. Differences are of bits by layer less "
        "equal bits, paired: below 0, bits by layer are better."
    )
    head = ["", "size of", "kB", "error, %", "error, points", "NLL", "ECE, points"]
    return [*table(head, named_once(rows)), "", f"{legend} {legend_of(changes)}"]


def _mean(pairs: Sequence[Pair], name: str, factor: float) -> float:
    return mean_and_deviation([factor * score(pair.quantised, name) for pair in pairs])[0]


def claims(studies: Studies) -> Lines:
    """The paper's claims by the rows of each network and scheme; C12 beside MNIST."""

    def made() -> Lines:
        found = verdicts(studies)
        if not found:
            raise Missing("no rows")
        return judged(_frames(studies), found, OF_PAGE["cifar10"])

    return or_not_run(made)


@lru_cache(maxsize=8)
def verdicts(studies: Studies) -> Found:
    """By network and scheme, and by claim; empty without rows."""
    frames = _frames(studies)
    more = {DIGITS: studies[DIGITS].frame} if DIGITS in studies else {}
    return judge_frames(frames, more) if frames else {}


def _frames(studies: Studies) -> dict[str, Frame]:
    frames: dict[str, Frame] = {}
    for network in NETWORKS:
        if network.study not in studies or not studies[network.study].frame.rows:
            continue
        held = Held.of(studies, network)
        frames[f"{network.words}, ours"] = held.ours.frame
        if any(row["precision"] != "float" for row in held.papers.frame.rows):
            frames[f"{network.words}, the paper's"] = held.papers.frame
    return frames


def smaller(studies: Studies) -> Lines:
    """What is smaller here than in the paper, from the studies' own files."""

    def made() -> Lines:
        there = [network for network in NETWORKS if network.study in studies]
        found = [held for network in there if (held := Held(network, studies[network.study])).frame.rows]
        if not found:
            raise Missing("no rows")
        rows = [
            [what, *(of(held) for held in found), papers]
            for what, of, papers in (
                ("seeds", lambda held: str(held.seeds()), "3"),
                *((f"epochs in float, {named(one)}", partial(_epochs, method=one), "300") for one in METHODS),
                ("members of `sghmc`", lambda held: str(_section(held, "sghmc", "method", "members")), "20"),
                ("epochs of fine-tuning, W8A7", lambda held: str(_tuned(held)), "10"),
                ("draws", lambda held: str(held.all.frame.values("draws")[-1]), "20"),
                ("test rows", lambda held: _rows(held, "test_rows"), "10,000"),
                ("test rows under shift", lambda held: _rows(held, "shift_rows"), "10,000"),
                ("rows of SVHN", lambda held: _rows(held, "ood_rows"), "26,032"),
                ("numbers in the point network", _weights, "1.6 million"),
            )
        ]
        return table(["", *(held.network.words for held in found), "the paper"], rows)

    return or_not_run(made)


def _epochs(held: Held, method: str) -> str:
    return epochs_of(held, method)


def _section(held: Held, method: str, section: str, name: str) -> object:
    return held.section(method, section).get(name, NONE)


def _tuned(held: Held) -> object:
    return held.section("pointwise", "quantize", "W8A7", "trained")["epochs"]


def _rows(held: Held, column: str) -> str:
    return ", ".join(f"{int(count):,}" for count in held.frame.values(column)) or NONE


def _weights(held: Held) -> str:
    """Of the point network, four bytes each in float."""
    found = held.all.floats(method="pointwise")
    return f"{int(found[0]['bytes']) // 4:,}" if found else NONE


def _apart(make: Callable[[Held], Lines]) -> Mapping[Network, Callable[[Studies], Lines]]:
    return {network: each(make, network) for network in NETWORKS}


_BY_NETWORK: Mapping[str, Callable[[Held], Lines]] = {
    "float": float_table,
    "aims": aims,
    "beside": beside,
    "labels": labels,
    "uncertainty": uncertainty,
    "shifts": shifts,
    "mixed": mixed,
    "grid": grid,
    "predictions": predictions,
    "batches": batches,
}
TABLES: Mapping[str, Callable[[Studies], Lines]] = {
    "summary": summary,
    "stand": stand,
    **PICTURES,
    **{
        f"{name} {network.study}": made
        for name, make in _BY_NETWORK.items()
        for network, made in _apart(make).items()
    },
    "claims": claims,
    "speed": lambda studies: or_not_run(lambda: speed(studies)),
    "hours": lambda studies: or_not_run(lambda: hours(studies)),
    "smaller": smaller,
    "ablation": ablation,
    "standard": standard,
}
