"""What stands first on the page of CIFAR-10, in sentences that rows make, and the pictures there are."""

from collections.abc import Callable, Mapping
from functools import partial

from published_cifar_rows import NETWORKS, Held, Network, change, or_not_run
from published_images import ECE, ERROR, Score
from published_numbers import EQUAL, Lines, Missing, Studies, named, signed

from qbayes.lab.analysis.pairs import Pair

NOT_DRAWN = "*Not drawn yet.*"
# what each picture shows; ``{network}`` is the study's.
CAPTIONS: Mapping[str, str] = {
    "equal_bits": "{network}: error, ECE, NLL, entropy and mutual information from 8 to 2 bits",
    "detection": "{network}: AUROC, AUPR and FPR95 of telling SVHN from CIFAR-10",
    "front": "{network}: error over size, bits by layer beside equal bits",
    "shifts-rotation": "{network}: ECE under rotation, float beside W8A7",
    "shifts-brightness": "{network}: ECE under brightness, float beside W8A7",
    "shifts-horizontal_shift": "{network}: ECE under horizontal shift, float beside W8A7",
    "weight_spread": "{network}: largest weight over the RMS, and deviation, by layer and method",
    "reliability": "{network}: reliability in float, at 8, 4 and 3 bits",
    "entropy_histograms-float": "{network}: entropy of single images of CIFAR-10 and SVHN in float",
    "entropy_histograms-w4a4": "{network}: entropy of single images of CIFAR-10 and SVHN at W4A4",
    "paper-activation_bits": "{network}: over activation bits, the paper's scheme",
    "paper-weight_bits": "{network}: over weight bits, the paper's scheme",
    "paper-reliability": "{network}: reliability, the paper's scheme",
    "paper-entropy_histograms-w8a4": "{network}: entropy of single images at W8A4, the paper's scheme",
}


def summary(studies: Studies) -> Lines:
    """The most that any method loses, by network and bits, and how many runs say so."""
    lines: Lines = []
    for network in NETWORKS:
        lines += or_not_run(lambda network=network: _of(Held.of(studies, network)), words=network.words)
    return lines


def _of(held: Held) -> Lines:
    found = [bits for bits in held.best.present("precision", EQUAL) if held.best.pairs(precision=bits)]
    if not found:
        raise Missing("no run by our recipe")
    done, planned = len(held.frame.rows), held.frame.planned
    whole = f"all {planned}" if done == planned else f"{done} of {planned}"
    parts = [f"{bits} {_most(held, bits, ERROR)} and {_most(held, bits, ECE)}" for bits in found]
    return [
        f"- **{held.network.words}** ({whole} runs): the most that a method loses, in points of error and of "
        f"ECE, is at {'; at '.join(parts)}."
    ]


def _most(held: Held, bits: str, of: Score) -> str:
    name, _, factor, digits = of
    lost = {method: change(pairs, name, factor).value for method, pairs in _by_method(held, bits).items()}
    worst = max(lost, key=lambda method: lost[method])
    return f"{signed(lost[worst], digits)} ({named(worst)})"


def _by_method(held: Held, bits: str) -> dict[str, list[Pair]]:
    found = {method: held.best.pairs(method=method, precision=bits) for method in held.methods}
    return {method: pairs for method, pairs in found.items() if pairs}


def picture(studies: Studies, network: Network, name: str) -> Lines:
    """A picture of the page, where it is drawn."""
    file = f"{network.study}-{name}.svg"
    drawn = studies.folder.parent / "images" / "results" / file
    caption = CAPTIONS[name].format(network=network.words)
    return [f"![{caption}](../images/results/{file})" if drawn.is_file() else f"{caption}. {NOT_DRAWN}"]


PICTURES: Mapping[str, Callable[[Studies], Lines]] = {
    f"picture {network.study}-{name}": partial(picture, network=network, name=name)
    for network in NETWORKS
    for name in CAPTIONS
}
