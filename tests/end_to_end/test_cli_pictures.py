"""``qbayes predict`` of a picture: the pixels of its middle, in the units of the network's inputs."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import qbayes as qb
from end_to_end.conftest import Cli


@pytest.fixture
def row() -> np.ndarray:
    """A digit of the test set: whole numbers from 0 to 16."""
    return next(iter(qb.load_task("digits").batches("test", 1)))[0].numpy()


def save(pixels: np.ndarray, path: Path) -> Path:
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


def test_a_picture_of_a_digit_answers_as_its_numbers_do(
    cli: Cli, digits_posterior: Path, row: np.ndarray, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", row)
    picture = save(row[0, 0] * 15, tmp_path / "x.png")
    # 17 grey levels, 15 apart: black is 0, and white would be 255 / 15.
    told = cli("predict", digits_posterior, picture, "--pixels", "0,17", "--json")
    numbers = cli("predict", digits_posterior, tmp_path / "x.npy", "--json")
    for name, value in numbers.json["answers"][0].items():
        assert told.json["answers"][0][name] == pytest.approx(value, abs=1e-4), name


def test_of_a_larger_picture_the_middle_is_averaged(
    cli: Cli, digits_posterior: Path, row: np.ndarray, tmp_path: Path
) -> None:
    exact = save(row[0, 0] * 15, tmp_path / "x.png")
    large = np.kron(row[0, 0] * 15, np.ones((4, 4)))
    wide = save(np.pad(large, ((0, 0), (10, 10)), constant_values=255), tmp_path / "wide.png")
    answers = [cli("predict", digits_posterior, path, "--pixels", "0,17", "--json") for path in (exact, wide)]
    assert answers[0].json["answers"] == answers[1].json["answers"]
    assert "52 × 32 pixels, cut and scaled to 8 × 8" in answers[1].err


def test_colour_becomes_grey_where_the_network_has_one_channel(
    cli: Cli, digits_posterior: Path, row: np.ndarray, tmp_path: Path
) -> None:
    grey = save(row[0, 0] * 15, tmp_path / "grey.png")
    colour = save(np.repeat(row[0, 0][:, :, None] * 15, 3, 2), tmp_path / "colour.png")
    answers = [cli("predict", digits_posterior, path, "--json") for path in (grey, colour)]
    assert answers[0].json["answers"] == answers[1].json["answers"]


def bomb(path: Path) -> Path:
    """A PNG of a few bytes that says it has 30,000 × 30,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 0, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + data)
    return path


def test_what_is_no_picture_is_refused(
    cli: Cli, digits_posterior: Path, diabetes_posterior: Path, row: np.ndarray, tmp_path: Path
) -> None:
    sound = save(row[0, 0] * 15, tmp_path / "x.png")
    cut = tmp_path / "cut.png"
    cut.write_bytes(sound.read_bytes()[:60])
    text = tmp_path / "text.png"
    text.write_text("no picture")
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "x.gif")
    other = (tmp_path / "x.gif").rename(tmp_path / "gif.png")
    for path, words in {
        tmp_path / "none.png": "no file",
        cut: "a sound PNG or JPEG file",
        text: "a sound PNG or JPEG file",
        other: "a sound PNG or JPEG file",
        bomb(tmp_path / "bomb.png"): "pixels",
    }.items():
        told = cli("predict", digits_posterior, path)
        assert told.code == 2, path
        assert words in " ".join(told.err.split()), path
        assert "Traceback" not in told.err
    told = cli("predict", diabetes_posterior, sound)
    assert told.code == 2
    assert "one or three channels" in " ".join(told.err.split())
    told = cli("predict", digits_posterior, sound, "--pixels", "0")
    assert told.code == 2
    assert "--pixels must be two numbers" in told.err
