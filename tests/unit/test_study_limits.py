"""Studies that ask for too much, or are called what no folder can be: refused before anything is made."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qbayes.cli import main
from qbayes.errors import BadInput
from qbayes.lab.study.executors.base import Conditions
from qbayes.lab.study.executors.local import Local, check_workers
from qbayes.lab.study.plan.tasks import Tasks
from qbayes.lab.study.run import run_study
from qbayes.lab.study.spec.grid import MOST_RUNS
from qbayes.lab.study.spec.study import LARGEST_TEXT, Study, builtin_studies, check_name, study_file
from qbayes.tasks.base import split_rows
from qbayes.training.budget import Budget

RUN = """
[study]
NAME

[run]
task = "diabetes"
network = {name = "mlp", hidden = [4]}
method = "mcd"
training = {epochs = 1}
quantize = {epochs = 1}
evaluate = {draws = 2}

[axes]
"""
MOST_BYTES, MOST_SECONDS = 500 << 20, 2.0
HUGE = 10**18
NAMES = [
    *("../../x", "..", ".", "/tmp/absolute", "a/b", "a\\b", "", "  ", "x" * 10_000, "ü" * 60, "bell\a"),
    *("esc\x1b[31m", "line\nfeed", "zero\0", "\u202eright to left", "\ud800"),
]


def numbers(count: int, share: float = 1.0, first: int = 0) -> str:
    return f"[{', '.join(repr(share * n if share < 1 else n) for n in range(first, first + count))}]"


def changed(old: str, new: str) -> str:
    assert old in RUN
    return RUN.replace(old, new)


MANY = numbers(1000)
WIDE = '{name = "resnet18", width = 2.5}'
# what is written, and what is said of it.
REFUSED: dict[str, tuple[str, str]] = {
    "a grid of 10^9": (
        RUN + f"seed = {MANY}\nmethod.rate = {numbers(1000, 1e-4)}\nthreads = {numbers(1000, first=1)}",
        "must span at most 100,000 runs",
    ),
    "lists in a table": (
        RUN + f"method = [{{rate = {numbers(2000, 1e-4)}, momentum = {numbers(2000, 1e-4)}}}]",
        "must span at most 100,000 runs",
    ),
    "joined sections": (
        RUN + f'"seed + threads" = [{{seed = {numbers(2000)}, threads = {numbers(2000)}}}]',
        "must span at most 100,000 runs",
    ),
    "the same run 10^9 times": (
        RUN + f"seed = [{'0,' * 40_000}]\nthreads = [{'1,' * 25_000}]",
        "must span at most 100,000 runs",
    ),
    "many axes": (RUN + "\n".join(f"method.a{n} = [1]" for n in range(5000)), "at most 20 axes"),
    "a grid beside nothing": (
        RUN + f"seed = {MANY}\nmethod.rate = {numbers(1000, 1e-4)}\nprecision = [{{weight = []}}]",
        "must span at most 100,000 runs",
    ),
    "nothing to choose": (RUN + "precision = [{weight = []}]", "a list of values"),
    "split": (changed('"diabetes"', f'{{name = "diabetes", split = {10**9}}}'), "the split must be 0"),
    "split below": (changed('"diabetes"', '{name = "diabetes", split = -1}'), "the split must be 0"),
    "epochs": (changed("training = {epochs = 1", f"training = {{epochs = {HUGE}"), "epochs must be"),
    "steps": (changed("training = {epochs = 1", f"training = {{least_steps = {HUGE}"), "least_steps"),
    "epochs by steps": (
        changed("training = {epochs = 1", f"training = {{batch_size = 400, least_steps = {10**9}"),
        "epochs must be",
    ),
    "batch": (changed("training = {epochs = 1", f"training = {{batch_size = {HUGE}"), "batch_size"),
    "epochs of quantise": (changed("quantize = {epochs = 1", f"quantize = {{epochs = {HUGE}"), "epochs"),
    "draws": (changed("draws = 2", f"draws = {HUGE}"), "draws must be from 1"),
    "rows at once": (changed("draws = 2", f"batch_size = {HUGE}"), "batch_size must be from 1"),
    "seed of the draws": (changed("draws = 2", "seed = -1"), "the seed must be"),
    "seed": (RUN.replace("[axes]", f"seed = {2**63}\n[axes]"), "below 2^63"),
    "seed below": (RUN.replace("[axes]", "seed = -1\n[axes]"), "the seed must be"),
    "threads": (RUN.replace("[axes]", f"threads = {HUGE}\n[axes]"), "threads must be"),
    "width": (changed("hidden = [4]", f"hidden = [{HUGE}]"), "below 2^31"),
    "widths": (changed("hidden = [4]", "hidden = [60000, 60000]"), "a size that can be trained"),
    "depth": (changed("hidden = [4]", f"hidden = [{'4, ' * 20_000}]"), "a size that can be trained"),
    "width of no number": (changed("hidden = [4]", 'hidden = "wide"'), "positive integers"),
    "a width between": (
        changed('{name = "mlp", hidden = [4]}', WIDE).replace("diabetes", "digits"),
        "the width of resnet18",
    ),
    "a digit too many": (changed("draws = 2", f"draws = {'9' * 5000}"), "TOML"),
    "a date": (changed("hidden = [4]", "hidden = 1979-05-27"), "numbers, texts"),
    "nan": (changed('"mcd"', '{name = "mcd", rate = nan}'), "must be finite"),
    "infinity": (changed("training = {epochs = 1", "training = {clip = inf"), "must be finite"),
    "a deep nest": (RUN + f"seed = {'[' * 5000}{']' * 5000}", "TOML"),
    "a nest": (RUN + f"seed = {'[' * 30}{']' * 30}", "nested at most"),
    "a long key": (RUN + ".".join("a" * 40_000) + " = 1", "at most 16 parts"),
    "a long quoted key": (RUN + ".".join(['"\\""'] * 20_000) + " = 1", "at most 16 parts"),
    "a long text": (changed("NAME", f'question = "{"why " * 5000}"'), "10,000 characters"),
    "a long file": (RUN + "#" * LARGEST_TEXT, "at most 131,072 characters"),
    "a terminal's command": (changed("NAME", 'question = "\\u001b]0;mine\\u0007"'), "printable"),
}  # fmt: skip


@pytest.fixture
def bounded() -> Iterator[None]:
    """The test takes little memory and time, whatever it is given."""
    Path("/proc/self/clear_refs").write_text("5")
    before, begun = kilobytes("VmRSS"), time.process_time()
    yield
    assert time.process_time() - begun < MOST_SECONDS
    assert (kilobytes("VmHWM") - before) << 10 < MOST_BYTES


def kilobytes(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("case", REFUSED)
def test_what_asks_for_too_much_is_refused_before_anything_is_made(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, why = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    study = tmp_path / "study.toml"
    study.write_text(text.replace("NAME", 'question = "?"'), encoding="utf-8")
    for command in ("plan", "run"):
        assert main(["study", command, str(study)]) == 2
        said = capsys.readouterr().err
        assert why in said
        assert "got:" in said
        assert "do:" in said
        assert "\x1b]" not in said
        assert len(said) < 10_000
        assert [path.name for path in tmp_path.iterdir()] == ["study.toml"]


@pytest.mark.parametrize("name", NAMES)
def test_a_study_is_called_what_a_folder_can_be(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = {"study": {"name": name}, "run": {"task": "digits", "network": "lenet", "method": "mcd"}}
    with pytest.raises(BadInput) as caught:
        Study.from_content(content)
    assert caught.value.do
    # a file's name is the study's where it has none.
    if name.strip():
        with pytest.raises(BadInput, match="the name of a study"):
            Study.from_content({**content, "study": {}}, name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", ["mnist", "Größe und Maß", "v1.2", "a-b_c", "x" * 100, "…", ".hidden", "研究"]
)
def test_names_that_folders_have_are_taken(name: str, tmp_path: Path) -> None:
    check_name(name)
    (tmp_path / name).mkdir()


def test_studies_that_come_with_qbayes_are_far_below_the_limits() -> None:
    for path in builtin_studies().values():
        study = Study.read(path)
        assert sum(1 for _ in study.points()) < MOST_RUNS / 4
        assert path.stat().st_size < LARGEST_TEXT / 10


def test_a_grid_at_the_limit_is_taken_and_one_more_is_not() -> None:
    assert len(Study.from_toml(RUN.replace("NAME", "") + f"seed = {numbers(1000)}").axes[0].choices) == 1000
    run = {"task": "digits", "network": "lenet", "method": "mcd"}
    at = {"seed": list(range(MOST_RUNS // 10)), "threads": list(range(1, 11))}
    study = Study.from_content({"run": run, "axes": at})
    assert sum(1 for _ in study.points()) == MOST_RUNS
    with pytest.raises(BadInput, match="span at most"):
        Study.from_content({"run": run, "axes": {**at, "threads": list(range(1, 12))}})


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("path", ["/dev/zero", "x" * 10_000, "x" * 300 + ".toml"])
def test_what_is_no_study_is_no_trap(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "plan", path]) == 2
    assert "do:" in capsys.readouterr().err


def test_a_device_without_end_is_read_as_far_as_a_study_goes(tmp_path: Path) -> None:
    (tmp_path / "long.toml").write_bytes("ü".encode() * LARGEST_TEXT)
    with pytest.raises(BadInput):
        Study.read(tmp_path / "long.toml")
    assert study_file(tmp_path / "long.toml") == tmp_path / "long.toml"


@pytest.mark.parametrize("workers", [0, -1, 10**9])
def test_workers_are_a_number_that_can_be_started(workers: int, tmp_path: Path) -> None:
    study = Study.from_content({"run": {"task": "digits", "network": "lenet", "method": "mcd"}})
    with pytest.raises(BadInput, match="workers"):
        run_study(study, tmp_path / "store", device="cpu", workers=workers)
    assert not (tmp_path / "store").exists()
    with pytest.raises(BadInput, match="workers"):
        Local(Conditions(tmp_path), workers=workers)
    check_workers(1)


def test_budgets_and_splits_have_an_end() -> None:
    assert Budget(epochs=1_000_000).epochs == 1_000_000
    with pytest.raises(BadInput, match="epochs"):
        Budget(epochs=1_000_001)
    assert len(split_rows(100, 999)[0]) == 90
    with pytest.raises(BadInput, match=r"0 … 999"):
        split_rows(100, 1000)


def test_facts_of_a_task_say_what_a_network_is_made_for() -> None:
    tasks = Tasks(None)
    assert tasks.facts("digits").outputs == (10,)
    assert tasks.facts("diabetes").outputs == (1,)
