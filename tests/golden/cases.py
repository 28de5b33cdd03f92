"""The cases: what is asked, in parts that each stand for themselves and may run in any order and process.

``zoo/NETWORK/METHOD`` and ``study/NAME`` depend on how a processor adds in float. ``exact/…`` does not: its
programs are of whole numbers from the start, and its one network has weights whose sums float holds exactly.
"""

import functools
from collections.abc import Callable, Mapping

from torch import Tensor

from golden import verbs
from golden.hashes import Entry, of_scores, sha

Case = Callable[[], Entry]
BITS = {"W8A8": (8, 8), "W4A4": (4, 4)}
STUDIES = ("digits", "diabetes")
EXACT = ("handmade", "random", "whole", "noise", "refused")
PARTS = (
    *(f"exact/{name}" for name in EXACT),
    *(f"study/{name}" for name in STUDIES),
    *(f"zoo/{network}/{method}" for network in verbs.NETWORKS for method in verbs.METHODS),
)
_RANDOM = 40


def answers(part: str, only: tuple[str, ...] = ()) -> dict[str, Entry]:
    """What the library answers now to the cases of a part, or to some of them."""
    kind, _, name = part.partition("/")
    with verbs.one_thread():
        if kind == "study":
            return _study(name)
        found = _zoo(*name.split("/")) if kind == "zoo" else _exact(name)
        return {case: make() for case, make in found.items() if case in only or not only}


def _zoo(network: str, method: str) -> Mapping[str, Case]:
    """A float posterior; and quantised to 8 and to 4 bits, calibrated and trained."""
    fitted = functools.cache(lambda: verbs.fit(network, method))

    def quantised(label: str, trained: bool) -> Entry:
        return _told(lambda: _of_quantised(fitted(), network, BITS[label], trained))

    return {"float": lambda: _of_float(fitted(), network)} | {
        f"{label} {'trained' if trained else 'calibrated'}": functools.partial(quantised, label, trained)
        for label in BITS
        for trained in (False, True)
    }


def _of_float(posterior: verbs.Posterior, network: str) -> Entry:
    x = verbs.inputs(network)
    draws, follows = verbs.predicted(posterior, x)
    found: Entry = {"draws": sha(draws), "answer": sha(follows)}
    found |= of_scores(verbs.scores(posterior, network), verbs.TOLD)
    return found | _told(lambda: {"onnx": sha(verbs.in_float_onnx(posterior, x))}, "onnx")


def _of_quantised(posterior: verbs.Posterior, network: str, bits: tuple[int, int], trained: bool) -> Entry:
    """The network with fake quantisation; its program on every backend, as C, and as ONNX."""
    quantised, x = verbs.quantize(posterior, network, bits, trained=trained), verbs.inputs(network)
    program = verbs.lower(quantised)
    draws, follows = verbs.predicted(quantised, x)
    found: Entry = {"fake": sha([draws, *follows])}
    found |= _told(lambda: of_scores(_reference_scores(program, network), verbs.TOLD), "scores")
    found |= _whole_numbers(program, x)
    for backend in verbs.BACKENDS:
        found |= _told(functools.partial(_on_backend, program, backend, x), backend)
    for dialect in verbs.RUNTIME_OF:
        found |= _told(functools.partial(_in_onnx, program, dialect, x), dialect)
    return found


def _reference_scores(program: verbs.Program, network: str) -> verbs.Numbers:
    return verbs.scores(verbs.loaded(program, "reference"), network)


def _whole_numbers(program: verbs.Program, x: Tensor, draws: int = verbs.DRAWS) -> Entry:
    """The heads' codes and the answer in integers, by the reference and by C: the same hashes."""
    found: Entry = {}
    for name, how in (("codes", verbs.in_integers), ("c", verbs.in_c)):
        codes, follows = how(program, x, draws)
        found |= {name: sha(codes), f"{name} answer": sha(follows)}
    return found


def _on_backend(program: verbs.Program, backend: str, x: Tensor) -> Entry:
    """The codes of all ops in their order, and the answers in the task's units."""
    loaded = verbs.loaded(program, backend)
    draws, follows = verbs.predicted(loaded, x)
    return {backend: sha(verbs.op_codes(loaded, x)), f"{backend} answer": sha([draws, *follows])}


def _in_onnx(program: verbs.Program, dialect: str, x: Tensor) -> Entry:
    codes, follows = verbs.in_onnx(program, dialect, x)
    return {dialect: sha(codes), f"{dialect} answer": sha(follows)}


def _study(name: str) -> dict[str, Entry]:
    return {which: of_scores(scores, verbs.TOLD) for which, scores in sorted(verbs.study_rows(name))}


def _exact(name: str) -> Mapping[str, Case]:
    if name == "handmade":
        widths = [*((bits, None) for bits in range(2, 9)), (8, 16)]
        return {f"{bits} {out}": functools.partial(_handmade, bits, out) for bits, out in widths}
    if name == "random":
        return {str(seed): functools.partial(_random, seed) for seed in range(_RANDOM)}
    if name == "whole":
        return {
            f"{method} {label}": functools.partial(_quantised_whole, method, bits)
            for method in ("pointwise", "mcd")
            for label, bits in BITS.items()
        }
    if name == "noise":
        return {"streams": lambda: {stream: sha(bits) for stream, bits in verbs.noise_streams()}}
    return {network: functools.partial(_refused, network) for network in verbs.REFUSED_NETWORKS}


def _handmade(bits: int, out_bits: int | None) -> Entry:
    return _by_reference_and_c(*verbs.handmade(bits, out_bits))


def _random(seed: int) -> Entry:
    return _by_reference_and_c(*verbs.random_program(seed))


def _quantised_whole(method: str, bits: tuple[int, int]) -> Entry:
    return _by_reference_and_c(*verbs.quantised_whole(method, bits))


def _by_reference_and_c(program: verbs.Program, x: Tensor, draws: int = verbs.DRAWS) -> Entry:
    ops = verbs.op_codes(verbs.loaded(program, "reference"), x, draws)
    return {"reference": sha(ops)} | _whole_numbers(program, x, draws)


def _refused(network: str) -> Entry:
    found: Entry = {}
    for method in verbs.METHODS:
        found |= _told(functools.partial(_never, network, method), method)
    return found


def _never(network: str, method: str) -> Entry:
    verbs.quantise_refused(network, method)
    return {method: "not refused"}


def _told(make: Case, name: str = "refused") -> Entry:
    """What a call found, or by which class of error the library refused it."""
    try:
        return make()
    except verbs.Refusal as error:
        return {name: verbs.kind_of(error)}
