"""UCI tables: columns, folders of one's own, both protocols, and files that are not tables."""

from pathlib import Path

import numpy as np
import pytest

from qbayes.errors import BadFile
from qbayes.tasks import load_task


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in ("yacht", "bostonHousing"):
        (tmp_path / "uci" / name).mkdir(parents=True)
        np.savetxt(tmp_path / "uci" / name / "data.txt", np.random.RandomState(0).normal(4.0, 2.0, (50, 4)))
    return tmp_path


def test_uci_columns_folders_and_protocols(data: Path) -> None:
    folder = data / "uci" / "mine" / "data"
    folder.mkdir(parents=True)
    table = np.random.RandomState(3).normal(5.0, 2.0, (40, 4))
    np.savetxt(folder / "data.txt", table)
    (folder / "index_features.txt").write_text("3\n0\n")
    (folder / "index_target.txt").write_text("1\n")
    task = load_task("uci/mine", data)
    x, y = next(task.batches("test", 99))
    order = np.random.RandomState(1).permutation(40)[36:]
    np.testing.assert_allclose(x.numpy(), table[order][:, [3, 0]], rtol=1e-6)
    np.testing.assert_allclose(y[:, 0].numpy(), table[order][:, 1], rtol=1e-6)
    paper = load_task("uci/mine", data, protocol="paper", split=9, validation=0.25)
    _, y = next(paper.batches("train", 99))
    assert (paper.train_rows, sum(len(x) for x, _ in paper.batches("test", 9))) == (27, 4)
    assert abs(float(y.mean())) < 1e-6
    assert abs(float(y.std(correction=0)) - 1) < 1e-6
    assert load_task("uci/bostonHousing", data).name == "uci/boston"


@pytest.mark.parametrize(
    ("content", "said"),
    [("1\n9\n", "column numbers"), ("-1\n", "column numbers"), ("0.5\n", "column numbers")],
)
def test_uci_column_files_are_checked(content: str, said: str, data: Path) -> None:
    (data / "uci" / "yacht" / "index_features.txt").write_text(content)
    with pytest.raises(BadFile, match=said):
        load_task("uci/yacht", data)


def test_uci_tables_with_holes_are_refused(data: Path) -> None:
    path = data / "uci" / "yacht" / "data.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(["1 nan 2 3", *lines]))
    with pytest.raises(BadFile, match="nan in row 0, column 1"):
        load_task("uci/yacht", data)
    path.write_text("\n".join([*lines, "1 2"]))
    with pytest.raises(BadFile, match="columns"):
        load_task("uci/yacht", data)
