"""Rows that ``predict`` reads (.npy, .npz, .csv, pictures, a task's test split) and its answers."""

import csv
import importlib.util
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from qbayes import NetworkPosterior, ProgramPosterior, Task
from qbayes.cli.console import note
from qbayes.cli.inputs import recorded_task, task_for
from qbayes.errors import BadFile, BadInput
from qbayes.posterior.storage.save import write_atomically
from qbayes.tasks.load import NUMPY_ERRORS

if TYPE_CHECKING:
    from PIL import Image

_PICTURES = (".png", ".jpg", ".jpeg")
# by channels; a picture of another mode is converted.
_MODES = {1: "L", 3: "RGB"}
_FORMATS = ("PNG", "JPEG")
# of one file: more would take gigabytes before anything is known of it.
_MOST_PIXELS = 50_000_000
_AXES = 3
_TASK = "task:"


@dataclass(frozen=True)
class Rows:
    """Raw inputs, the number of their first row (it keys the noise), and targets where they are known."""

    x: Tensor | np.ndarray
    first_row: int = 0
    targets: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])


def read_rows(
    source: str,
    posterior: NetworkPosterior | ProgramPosterior,
    data_dir: Path | None,
    pixels: tuple[float, float] = (0, 255),
) -> Rows:
    """The rows that ``source`` means; ``pixels`` are the raw inputs of black and white in a picture."""
    if source.startswith(_TASK):
        return _task_rows(source, posterior, data_dir)
    path = Path(source).expanduser()
    if path.suffix.lower() in _PICTURES:
        return Rows(read_image(path, posterior.signature.input_shape, pixels))
    readers = {".npy": _read_numpy, ".npz": _read_numpy, ".csv": read_csv}
    if path.suffix not in readers:
        raise BadInput(
            "the input must be a .npy, .npz, .csv, .png or .jpg file, or rows of a task",
            f"'{source}'",
            f"for example x.npy, or task:{posterior.signature.task}:5",
        )
    x = readers[path.suffix](path)
    shape = posterior.signature.input_shape
    # a CSV file has no axes: its columns are a row's numbers in order.
    if path.suffix == ".csv" and x.shape[1] == int(np.prod(shape)):
        x = x.reshape(len(x), *shape)
    return Rows(x)


def _task_rows(source: str, posterior: NetworkPosterior | ProgramPosterior, data_dir: Path | None) -> Rows:
    name, _, wanted = source.removeprefix(_TASK).partition(":")
    recorded = recorded_task(posterior)[0]
    # the short name of a file that the posterior was fitted on means that file.
    chosen = recorded if name in ("", posterior.signature.task) and recorded else name
    task = task_for(posterior, chosen, data_dir, {})
    first, last = _range(wanted, source)
    xs: list[Tensor] = []
    ys: list[Tensor] = []
    seen = 0
    for x, y in task.batches("test", 1024):
        low, high = max(first - seen, 0), len(x) if last is None else last + 1 - seen
        seen += len(x)
        if low < len(x) and high > 0:
            xs.append(x[low:high])
            ys.append(y[low:high])
    if not xs or (last is not None and last >= seen):
        raise BadInput(
            f"rows must lie within the {seen} test rows of '{task.name}'",
            f"'{source}'",
            f"rows are numbered 0 … {seen - 1}",
        )
    return Rows(torch.cat(xs), first, _targets(task, torch.cat(ys)))


def _range(text: str, source: str) -> tuple[int, int | None]:
    """First and last row (None: the end): '' all, '5' the first five, '5-9' rows 5 to 9."""
    first, dash, last = text.partition("-")
    if not text:
        return 0, None
    if dash and first.isdecimal() and last.isdecimal() and int(first) <= int(last):
        return int(first), int(last)
    if not dash and first.isdecimal() and int(first) > 0:
        return 0, int(first) - 1
    raise BadInput(
        "rows of a task must be a number of rows, or first-last",
        f"'{text}' in '{source}'",
        "for example task:digits:5, or task:digits:5-9",
    )


def _targets(task: Task, y: Tensor) -> dict[str, list[Any]]:
    if task.kind == "classification":
        labels = task.signature.labels
        return {"target": [labels[k] if labels else str(k) for k in y.tolist()]}
    columns = y.flatten(1).T.tolist()
    return {f"target_{t}" if len(columns) > 1 else "target": values for t, values in enumerate(columns)}


def _read_numpy(path: Path) -> np.ndarray:
    """The array in a .npy file, or ``x`` in a .npz file; nothing is unpickled."""
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            x = content
        else:
            with content:
                if "x" not in content.files:
                    got = ", ".join(content.files) or "nothing"
                    raise BadFile(f"{path} must hold the array 'x'", got, "write it with np.savez(path, x=…)")
                x = content["x"]
    except BadFile:
        raise
    except NUMPY_ERRORS as error:
        raise BadFile(
            f"{path} must be a numpy file of plain numbers", f"{error}", "write it with np.save(path, x)"
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from None
    if x.dtype.kind not in "iuf" or x.ndim == 0:
        raise BadFile(
            f"{path} must hold rows of real numbers", f"{x.dtype}, shape {x.shape}", "convert it first"
        )
    # torch reads native byte order, and unsigned integers of one byte only.
    if x.dtype == np.uint8:
        return x
    return x.astype(np.float32 if x.dtype.kind == "u" else x.dtype.newbyteorder("="))


def read_csv(path: Path) -> np.ndarray:
    """A table of numbers; a first line that is not all numbers is a header."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = [(number, line) for number, line in enumerate(csv.reader(file), start=1) if any(line)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadFile(f"{path} must be a CSV file in UTF-8", f"{error}", "export it again") from None
    except OSError as error:
        raise _unreadable(path, error) from None
    if lines and _numbers(lines[0][1]) is None:
        lines = lines[1:]
    if not lines:
        raise BadFile(f"{path} must hold rows of numbers", "none", "check where it comes from")
    rows: list[list[float]] = []
    for number, line in lines:
        values = _numbers(line)
        if values is None or len(values) != len(lines[0][1]):
            raise BadFile(
                f"every line of {path} must hold {len(lines[0][1])} numbers, separated by commas",
                f"line {number}: {','.join(line)[:60]}",
                "mend the line, or fill what is missing",
            )
        rows.append(values)
    return np.asarray(rows, dtype=np.float32)


def _numbers(line: Sequence[str]) -> list[float] | None:
    try:
        return [float(cell) for cell in line]
    except ValueError:
        return None


def as_records(columns: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """One object a row, for JSON."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def write_columns(path: Path, columns: Mapping[str, list[Any]], described: Mapping[str, Any]) -> None:
    """The answers as .csv, .npz (one array a column) or .json (one object a row), written atomically."""
    if path.suffix == ".npz":
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {name: np.asarray(values) for name, values in columns.items()}
        np.savez(buffer, **arrays)
        payload = buffer.getvalue()
    elif path.suffix == ".json":
        document = {**described, "answers": as_records(columns)}
        payload = json.dumps(document, indent=1, allow_nan=False).encode()
    else:
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        payload = text.getvalue().encode()
    write_atomically(path, payload)


def _unreadable(path: Path, error: OSError) -> BadFile:
    return BadFile(
        f"{path} must be a readable file", f"{error.strerror or error}", "check its path and rights"
    )


def read_image(path: Path, input_shape: Sequence[int], pixels: tuple[float, float]) -> np.ndarray:
    """The picture in ``path`` as an array of one row.

    Args:
        path: A PNG or JPEG file.
        input_shape: Of one row of the network: channels, height, width.
        pixels: The raw inputs that stand for black and for white.

    Returns:
        An array of shape ``(1, channels, height, width)``.
    """
    if len(input_shape) != _AXES or input_shape[0] not in _MODES:
        raise BadInput(
            "a picture needs a network that reads one or three channels, height and width",
            f"{path}, and a network that reads {tuple(input_shape)}",
            "give the rows as x.npy",
        )
    channels, height, width = input_shape
    image = _open(path, _MODES[channels], (width, height))
    rows = np.asarray(image, np.float32).reshape(1, height, width, channels).transpose(0, 3, 1, 2)
    low, high = pixels
    return low + rows * ((high - low) / 255)


def _open(path: Path, mode: str, size: tuple[int, int]) -> "Image.Image":
    if importlib.util.find_spec("PIL") is None:
        raise BadInput("pictures need Pillow", "it is not installed", "pip install 'qbayes[report]'")
    from PIL import Image, ImageOps

    try:
        with Image.open(path, formats=_FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise BadInput(
                    f"a picture must have at most {_MOST_PIXELS:,} pixels",
                    f"{path} has {image.width} × {image.height}",
                    "reduce it first",
                )
            if image.size != size:
                width, height = size
                given = f"{image.width} × {image.height}"
                note(f"{path.name}: {given} pixels, cut and scaled to {width} × {height}")
            return ImageOps.fit(image.convert(mode), size, Image.Resampling.BOX)
    except FileNotFoundError:
        raise BadFile("the input must be there", f"no file {path}", "check the path") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadFile(
            "a picture must be a sound PNG or JPEG file", f"{path}: {reason}", "save it anew"
        ) from None
