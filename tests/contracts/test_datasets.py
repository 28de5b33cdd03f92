"""What every registered data set keeps, checked on small files in the true formats.

A new data set adds one writer below; the rest runs by itself.
"""

import gzip
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.io import loadmat, savemat

import needs
from qbayes.errors import BadFile, BadInput
from qbayes.tasks import DATASETS, Task, load_task, verify
from qbayes.tasks import datasets as registry_folder
from qbayes.tasks.dataset import MissingFile
from qbayes.tasks.datasets.cifar10 import read_records
from qbayes.tasks.datasets.svhn import read_mat
from qbayes.tasks.files.download import file_of_scikit_learn, table_of_scikit_learn
from qbayes.tasks.files.idx import read_idx_images
from qbayes.tasks.files.mat import read_arrays

TRAIN, TEST = 60, 20


def pixels(rows: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, 256, (rows, *shape)).astype(np.uint8)


def labels(rows: int) -> np.ndarray:
    return (np.arange(rows) % 10).astype(np.uint8)


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return gzip.compress(header + array.tobytes(), mtime=0)


def write_idx(folder: Path) -> None:
    for name, rows in (("train", TRAIN), ("t10k", TEST)):
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(idx(pixels(rows, 28, 28)))
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(idx(labels(rows)))


def write_cifar10(folder: Path) -> None:
    inside = folder / "cifar-10-batches-bin"
    inside.mkdir()
    for k, name in enumerate([f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]):
        records = np.concatenate([labels(20)[:, None], pixels(20, 3072, seed=k)], 1)
        (inside / f"{name}.bin").write_bytes(records.tobytes())


def write_svhn(folder: Path, deflated: bool = True) -> None:
    x = pixels(TEST, 32, 32, 3).transpose(1, 2, 3, 0)
    digits = labels(TEST)
    y = np.where(digits == 0, 10, digits)[:, None].astype(np.float64)
    savemat(folder / "test_32x32.mat", {"X": x, "y": y}, do_compression=deflated)


def write_uci(folder: Path) -> None:
    for name in DATASETS["uci"].variants.values():
        (folder / name).mkdir()
        table = np.random.RandomState(0).normal(4.0, 2.0, (50, 4))
        np.savetxt(folder / name / "data.txt", table)


def nothing(folder: Path) -> None:
    """Bundled with scikit-learn."""


WRITERS: dict[str, Callable[[Path], None]] = {
    "mnist": write_idx,
    "fashion_mnist": write_idx,
    "cifar10": write_cifar10,
    "svhn": write_svhn,
    "uci": write_uci,
    "digits": nothing,
    "diabetes": nothing,
}
NAMES = [*(name for name in DATASETS if name != "uci"), *(f"uci/{v}" for v in DATASETS["uci"].variants)]
WITH_FILES = [name for name in DATASETS if DATASETS[name].files]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name, write in WRITERS.items():
        (tmp_path / name).mkdir()
        write(tmp_path / name)
    return tmp_path


def rows_of(task: Task, split: str) -> torch.Tensor:
    return torch.cat([x for x, _ in task.batches(split, 1000)])


def test_one_file_a_member_under_its_own_name() -> None:
    files = {path.stem for path in Path(registry_folder.__path__[0]).glob("*.py")} - {"__init__"}
    assert set(DATASETS) == files == set(WRITERS)
    assert all(DATASETS[name].name == name for name in DATASETS)


@pytest.mark.parametrize("name", list(DATASETS))
def test_members_say_what_they_are(name: str) -> None:
    member = DATASETS[name]
    assert member.summary
    assert member.terms
    for file in member.files:
        kind, _, digits = file.checksum.partition(":")
        assert len(digits) == {"md5": 32, "sha256": 64}[kind]
        assert int(digits, 16) >= 0
        assert file.publisher().startswith("http")


@pytest.mark.parametrize("name", NAMES)
def test_loading_gives_a_sound_task(name: str, data: Path) -> None:
    task = load_task(name, data)
    assert (task.name, task.kind) == (name, DATASETS[name.partition("/")[0]].kind)
    assert json.loads(json.dumps(task.provenance)) == task.provenance
    assert task.provenance["options"] == DATASETS[name.partition("/")[0]].options()
    for split in task.splits:
        for x, y in task.batches(split, 32):
            assert tuple(x.shape[1:]) == task.signature.input_shape
            assert len(x) == len(y)
    assert task.fingerprint == load_task(name, data).fingerprint


@pytest.mark.parametrize("name", [name for name in NAMES if name != "svhn"])
def test_the_scale_is_that_of_the_training_rows_alone(name: str, data: Path) -> None:
    task = load_task(name, data, validation=0.2)
    train = rows_of(task, "train")
    assert len(train) == task.train_rows
    scaled = task.signature.transform.apply(train)
    axes = [axis for axis in range(scaled.ndim) if axis != 1]
    torch.testing.assert_close(scaled.mean(axes), torch.zeros(scaled.shape[1]), atol=2e-5, rtol=0)
    whole = task.train_rows + len(rows_of(task, "validation"))
    assert whole == load_task(name, data, validation=0).train_rows
    assert len(rows_of(task, "validation")) == round(0.2 * whole)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "svhn"])
def test_seeds_choose_the_validation_rows_and_leave_the_test_rows(name: str, data: Path) -> None:
    one, two = (load_task(name, data, validation=0.2, seed=seed) for seed in (1, 2))
    assert torch.equal(rows_of(one, "test"), rows_of(two, "test"))
    assert not torch.equal(rows_of(one, "validation"), rows_of(two, "validation"))
    assert one.fingerprint != two.fingerprint


@pytest.mark.parametrize("name", NAMES)
def test_unknown_options_name_the_nearest(name: str, data: Path) -> None:
    said = "validation" if name != "svhn" else "nothing"
    with pytest.raises(BadInput, match=said):
        load_task(name, data, validaton=0.1)


@pytest.mark.parametrize("name", [name for name in NAMES if name.partition("/")[0] in WITH_FILES])
def test_missing_files_are_named_with_place_and_checksum(name: str, tmp_path: Path) -> None:
    with pytest.raises(MissingFile) as caught:
        load_task(name, tmp_path)
    head, _, variant = name.partition("/")
    for file in DATASETS[head].files_of(variant):
        assert str(tmp_path / head / file.path) in str(caught.value)
        assert file.checksum in str(caught.value)
    assert f"qbayes data fetch {head}" in caught.value.do


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "garbage": lambda content: b"\xffgarbage \x00" * 7,
    "cut": lambda content: content[: len(content) // 2 + 1],
    "page": lambda content: b"<html>404 not found</html>\n" * 20,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("name", "path"), [(n, f.path) for n in WITH_FILES for f in DATASETS[n].files])
def test_damaged_files_are_refused_by_name(name: str, path: str, damage: str, data: Path) -> None:
    place = data / name / path
    place.write_bytes(DAMAGES[damage](place.read_bytes()))
    task = f"{name}/{path.partition('/')[0]}" if DATASETS[name].variants else name
    with pytest.raises(BadFile) as caught:
        load_task(task, data)
    assert str(place) in str(caught.value)
    assert dict(verify(name, data))[path] == "damaged"


@pytest.mark.parametrize("name", WITH_FILES)
def test_sound_files_that_are_not_the_official_ones_are_called_other(name: str, data: Path) -> None:
    assert {state for _, state in verify(name, data)} == {"other"}


# What each format says, beyond loading.


def test_idx_and_cifar_pixels_come_out_as_they_went_in(data: Path) -> None:
    mnist = load_task("mnist", data, validation=0)
    assert torch.equal(rows_of(mnist, "train")[:, 0], torch.from_numpy(pixels(TRAIN, 28, 28)))
    x, y = read_records(data / "cifar10" / "cifar-10-batches-bin" / "test_batch.bin")
    assert torch.equal(x.flatten(1), torch.from_numpy(pixels(20, 3072, seed=5)))
    assert y.tolist() == labels(20).tolist()


@pytest.mark.parametrize("deflated", [False, True])
def test_svhn_agrees_with_scipy_and_calls_ten_zero(tmp_path: Path, deflated: bool) -> None:
    write_svhn(tmp_path, deflated)
    path = tmp_path / "test_32x32.mat"
    ours, theirs = read_arrays(path), loadmat(path)
    for name in ("X", "y"):
        assert ours[name].dtype == theirs[name].dtype
        assert np.array_equal(ours[name], theirs[name])
    x, y = read_mat(path)
    assert y.tolist() == labels(TEST).tolist()
    assert torch.equal(x, torch.from_numpy(pixels(TEST, 32, 32, 3).transpose(0, 3, 1, 2).copy()))


def test_svhn_has_no_training_rows_and_says_so(data: Path) -> None:
    task = load_task("svhn", data)
    assert (task.train_rows, task.splits) == (0, ("test",))
    with pytest.raises(BadInput, match="confusion data"):
        task.training_batches(4, torch.Generator(), torch.device("cpu"), 0)


def bad_idx(
    array: np.ndarray, magic: bytes = b"\x00\x00\x08\x03", shape: tuple[int, ...] | None = None
) -> bytes:
    return gzip.compress(magic + struct.pack(">3I", *(shape or array.shape)) + array.tobytes())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (bad_idx(pixels(2, 28, 28), magic=b"\x00\x00\x0d\x03"), "begins with 00 00 0d 03"),
        (bad_idx(pixels(2, 28, 28), magic=b"\x00\x00\x08\x01"), "begins with 00 00 08 01"),
        (bad_idx(pixels(2, 28, 28), shape=(3, 28, 28)), "2352 bytes; there are 1568 bytes"),
        (bad_idx(pixels(2, 28, 28), shape=(1, 28, 28)), "784 bytes; there are more"),
        (bad_idx(pixels(2, 32, 32)), r"\(2, 32, 32\)"),
        (bad_idx(pixels(2, 28, 28), shape=(2**32 - 1, 28, 28)), "header says"),
        (bad_idx(pixels(0, 28, 28)), "header says"),
        (bad_idx(pixels(2, 28, 28))[:-6] + b"\x00\x00" + bad_idx(pixels(2, 28, 28))[-4:], "gzip"),
    ],
)
def test_idx_headers_are_checked(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "images.gz").write_bytes(content)
    with pytest.raises(BadFile, match=said):
        read_idx_images(tmp_path / "images.gz")


def test_labels_out_of_range_are_damage(data: Path) -> None:
    (data / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(idx(labels(TEST) + 5))
    with pytest.raises(BadFile, match="a label 14"):
        load_task("mnist", data)
    path = data / "cifar10" / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(b"\x0b" + path.read_bytes()[1:])
    with pytest.raises(BadFile, match="a label 11"):
        load_task("cifar10", data)


def flipped(content: bytes, place: int, bit: int) -> bytes:
    out = bytearray(content)
    out[place % len(out)] ^= 1 << bit
    return bytes(out)


IDX, ARRAY = idx(pixels(1, 28, 28)), torch.from_numpy(pixels(1, 28, 28))[:, None]
fuzz = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@fuzz
@given(place=st.integers(0, len(IDX) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_of_an_idx_file_never_changes_a_pixel(place: int, bit: int, tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(flipped(IDX, place, bit))
    try:
        assert torch.equal(read_idx_images(path), ARRAY)  # bits of gzip's time stamp and name carry nothing
    except BadFile as refused:
        said = str(refused)
    else:
        said = str(path)
    assert str(path) in said


@fuzz
@given(place=st.integers(0, 500), bit=st.integers(0, 7), deflated=st.booleans())
def test_a_flipped_bit_of_a_mat_file_is_an_error_or_harmless(
    place: int, bit: int, deflated: bool, tmp_path: Path
) -> None:
    path = tmp_path / "test_32x32.mat"
    write_svhn(tmp_path, deflated)
    path.write_bytes(flipped(path.read_bytes(), place, bit))
    try:
        x, y = read_mat(path)
        assert (tuple(x.shape), tuple(y.shape)) == ((TEST, 3, 32, 32), (TEST,))
    except BadFile as refused:
        said = str(refused)
    else:
        said = str(path)
    assert str(path) in said


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("uci/bostn", {}, "did you mean 'boston'"),
        ("uci", {}, "uci/boston"),
        ("uci/../mnist", {}, "set/folder"),
        ("uci/boston", {"split": 20}, "0 … 19"),
        ("uci/boston", {"split": 10, "protocol": "paper"}, "0 … 9"),
        ("uci/boston", {"protocol": "papr"}, "did you mean 'paper'"),
        ("mnits", {}, "did you mean 'mnist'"),
        ("mnist", {"confusion": "yes"}, "'auto', True or False"),
        ("mnist", {"seed": -1, "validation": 0.1}, "seed"),
    ],
)
def test_bad_requests(name: str, options: dict[str, Any], said: str, data: Path) -> None:
    with pytest.raises(BadInput, match=said):
        load_task(name, data, **options)


@pytest.mark.parametrize(
    ("name", "lender"), [("mnist", "fashion_mnist"), ("fashion_mnist", "mnist"), ("cifar10", "svhn")]
)
def test_confusion_data_is_used_if_there_required_or_left_out(name: str, lender: str, data: Path) -> None:
    task = load_task(name, data)
    assert task.confusion_name == task.provenance["confusion"] == lender
    test_inputs = rows_of(load_task(lender, data), "test")
    assert torch.equal(torch.cat(list(task.confusion_batches(7))), test_inputs)
    assert load_task(name, data, confusion=False).confusion_name is None
    for path in (data / lender).rglob("*"):
        path.unlink()
    without = load_task(name, data)
    assert without.confusion_name is None
    assert lender in without.provenance["confusion"]
    with pytest.raises(MissingFile, match=lender):
        load_task(name, data, confusion=True)


def test_options_may_be_numbers_of_numpy() -> None:
    task = load_task("digits", split=np.int64(3), validation=np.float32(0.125))
    assert json.loads(json.dumps(task.provenance))["options"]["split"] == 3
    assert task.fingerprint == load_task("digits", split=3, validation=0.125).fingerprint


def test_digits_confusion_data_are_patches_in_the_range_of_the_digits() -> None:
    task = load_task("digits", confusion=True)
    patches = torch.cat(list(task.confusion_batches(1000)))
    assert tuple(patches.shape) == (520, 1, 8, 8)
    assert task.input_range == (0.0, 16.0)
    assert 0 <= int(patches.min()) < 4
    assert 12 < int(patches.max()) <= 16
    assert torch.equal(patches, torch.cat(list(load_task("digits").confusion_batches(9))))


def test_splits_of_the_bundled_sets() -> None:
    digits, other = load_task("digits", validation=0), load_task("digits", validation=0, split=1)
    assert (digits.train_rows, len(rows_of(digits, "test"))) == (1348, 449)
    assert not torch.equal(rows_of(digits, "test"), rows_of(other, "test"))
    diabetes = load_task("diabetes")
    assert (diabetes.train_rows, len(rows_of(diabetes, "test"))) == (398, 44)
    assert float(rows_of(diabetes, "train")[:, 0].min()) > 15  # ages in years, not sklearn's scaled columns


def test_bundled_sets_are_what_scikit_learn_loads() -> None:
    """Its files are read without it; the numbers and pictures are those of its own loaders."""
    sklearn = needs.package("sklearn.datasets")
    images, digits = sklearn.load_digits(return_X_y=True)
    table = table_of_scikit_learn("digits", ",")
    assert np.array_equal(table[:, :-1], images)
    assert np.array_equal(table[:, -1], digits)
    x, y = sklearn.load_diabetes(return_X_y=True, scaled=False)
    assert np.array_equal(table_of_scikit_learn("diabetes_data_raw"), x)
    assert np.array_equal(table_of_scikit_learn("diabetes_target"), y)
    pictures = [
        np.asarray(Image.open(file_of_scikit_learn(f"images/{name}.jpg"))) for name in ("china", "flower")
    ]
    for ours, theirs in zip(pictures, sklearn.load_sample_images().images, strict=True):
        assert np.array_equal(ours, theirs)


def test_a_bundled_file_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingFile, match=r"data/iris2\.csv\.gz"):
        table_of_scikit_learn("iris2")
    monkeypatch.setattr("qbayes.tasks.files.download.find_spec", lambda package: None)
    with pytest.raises(MissingFile, match="in this environment"):
        load_task("digits")


def test_cifar_trains_augmented_unless_told_otherwise(data: Path) -> None:
    assert load_task("cifar10", data).augment is not None
    plain = load_task("cifar10", data, augment=False)
    assert plain.augment is None
    assert plain.fingerprint != load_task("cifar10", data).fingerprint


def test_cifar_cuts_a_grey_square_out_where_asked(data: Path) -> None:
    usual, cut = load_task("cifar10", data), load_task("cifar10", data, cutout=32)
    assert cut.fingerprint != usual.fingerprint
    assert cut.augment is not None
    torch.manual_seed(0)
    white = torch.full((64, 3, 32, 32), 255, dtype=torch.uint8)
    covered = (cut.augment(white) == 121).float().mean()
    # a square as large as the image covers 3/4 of it along each side on average, (3/4)² in all.
    assert abs(float(covered) - 9 / 16) < 0.1
    assert load_task("cifar10", data, cutout=0).fingerprint == usual.fingerprint
    for wrong in ({"cutout": 33}, {"cutout": -1}, {"cutout": True}, {"cutout": 8, "augment": False}):
        with pytest.raises(BadInput, match="side of a square"):
            load_task("cifar10", data, **wrong)
