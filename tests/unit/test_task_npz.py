"""Tasks from .npz files: plain arrays only, nothing unpickled, damage refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qbayes.errors import BadFile, BadInput
from qbayes.tasks import load_task


def write_npz(path: Path, **changes: object) -> Path:
    x = np.random.RandomState(0).normal(size=(40, 3))
    arrays: dict[str, object] = {
        "x_train": x,
        "y_train": np.arange(40) % 3,
        "x_test": x[:9],
        "y_test": np.arange(9) % 3,
        **changes,
    }
    kept = {name: np.asarray(array) for name, array in arrays.items() if array is not None}
    np.savez(path, allow_pickle=False, **kept)
    return path


def test_npz_files_take_the_kind_from_the_targets(tmp_path: Path) -> None:
    task = load_task(str(write_npz(tmp_path / "a.npz")))
    assert (task.kind, task.splits, task.train_rows) == (
        "classification",
        ("train", "validation", "test"),
        36,
    )
    real = write_npz(tmp_path / "b.npz", y_train=np.linspace(0, 1, 40), y_test=np.linspace(0, 1, 9))
    assert (load_task(str(real)).kind, load_task(str(real)).splits) == ("regression", ("train", "test"))
    forced = load_task(str(tmp_path / "a.npz"), kind="regression")
    assert (forced.kind, forced.provenance["options"]["kind"]) == ("regression", "regression")


def test_npz_files_never_unpickle(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x_train=np.array([{"a": 1}], dtype=object), y_train=np.zeros(1))
    with pytest.raises(BadFile, match="nothing is unpickled"):
        load_task(str(path))
    path.write_bytes(b"\x80\x04}.")  # a bare pickle
    with pytest.raises(BadFile):
        load_task(str(path))


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({"y_train": None}, {}, "no array y_train"),
        ({"x_vaidation": np.zeros(3)}, {}, "did you mean 'x_validation'"),
        ({}, {"knd": "regression"}, "did you mean 'kind'"),
    ],
)
def test_npz_arrays_and_options_are_checked(
    changes: dict[str, object], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=said):
        load_task(str(write_npz(tmp_path / "a.npz", **changes)), **options)


def test_npz_single_array_and_absent_file(tmp_path: Path) -> None:
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(BadFile, match=r"must be an \.npz file"):
        load_task(str(tmp_path / "a.npz"))
    with pytest.raises(BadFile, match="No such file"):
        load_task(str(tmp_path / "none.npz"))


@pytest.mark.parametrize("lost", ["x_test", "y_test"])
def test_inputs_without_targets_are_told_of_their_file(lost: str, tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz")
    with np.load(path) as held:
        np.savez(path, **{name: held[name] for name in held.files if name != lost})
    with pytest.raises(BadFile, match="without the other of x_test and y_test") as error:
        load_task(str(path))
    assert str(path) in str(error.value)


def test_a_directory_that_hides_arrays_is_refused(tmp_path: Path) -> None:
    """The comment of an entry claims to be as long as all entries behind it: readers do not count them."""
    path = write_npz(tmp_path / "a.npz")
    content = bytearray(path.read_bytes())
    entries = [at for at in range(len(content)) if content[at : at + 4] == b"PK\x01\x02"]
    hidden = len(content) - 22 - entries[2]
    content[entries[1] + 32 : entries[1] + 34] = hidden.to_bytes(2, "little")
    path.write_bytes(content)
    with pytest.raises(BadFile, match="2 arrays of the 4 that were written"):
        load_task(str(path))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10**6), bit=st.integers(0, 7), cut=st.booleans())
def test_a_damaged_npz_is_refused_or_unchanged(place: int, bit: int, cut: bool, tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz")
    sound, content = load_task(str(path)).fingerprint, path.read_bytes()
    path.write_bytes(content[: place % len(content)] if cut else _flipped(content, place, bit))
    try:
        assert load_task(str(path)).fingerprint == sound
    except BadFile as refused:
        said = str(refused)
    else:
        said = str(path)
    assert str(path) in said


def _flipped(content: bytes, place: int, bit: int) -> bytes:
    out = bytearray(content)
    out[place % len(out)] ^= 1 << bit
    return bytes(out)
