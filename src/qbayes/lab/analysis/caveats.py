"""What a study cannot judge although it has numbers: no control for the training, two commits, two machines.

A quantised network was also trained on. Without a float network that was fine-tuned as long, what the bits
did and what the training did are one difference. Where the two rows of a pair were scored by other code or on
another processor, so is what these did.
"""

from collections.abc import Sequence

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.pairs import Pair, is_control, paired
from qbayes.lab.study.store.table import float_key

# what the two rows of a pair must share, and what it is called.
SHARED = {
    "commit": "commits",
    "processor": "processors",
    "instructions": "sets of instructions",
    "device": "devices",
}
CALIBRATED = "calibrated"


def caveats(frame: Frame) -> tuple[str, ...]:
    """Sentences for whatever rests on small differences to float."""
    return frame.once("caveats", lambda: _caveats(frame))


def _caveats(frame: Frame) -> tuple[str, ...]:
    said: list[str] = []
    alone, trained = without_control(frame)
    if alone:
        many = f"{len(alone)} of {len(trained)} fine-tuned runs"
        said.append(
            f"No control: for {many} no float network was fine-tuned alike, so that what bits changed cannot "
            "be told from what training changed."
        )
    for column, words in SHARED.items():
        mixed = of_two(frame, column)
        if mixed:
            said.append(
                f"Two {words}: {len(mixed)} of {len(paired(frame))} quantised runs differ in them from their "
                "float runs, so that what bits changed cannot be told from what these changed."
            )
    return tuple(said)


def without_control(frame: Frame) -> tuple[Sequence[Pair], Sequence[Pair]]:
    """The pairs whose quantised network was fine-tuned and has no control, and all that were fine-tuned."""
    trained = [pair for pair in paired(frame) if pair.quantised.get("training") != CALIBRATED]
    held = {(float_key(row), row.get("training")) for row in frame.rows if is_control(row)}
    alone = [p for p in trained if (float_key(p.quantised), p.quantised.get("training")) not in held]
    return alone, trained


def of_two(frame: Frame, column: str) -> list[Pair]:
    """The pairs whose two rows say different things in a column; older rows do not say it."""
    return [
        pair
        for pair in paired(frame)
        if pair.quantised.get(column) is not None
        and pair.float.get(column) is not None
        and pair.quantised[column] != pair.float[column]
    ]
