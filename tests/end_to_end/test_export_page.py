"""``qbayes export --target web`` in a real browser: it answers as Python does, and says what is wrong."""

import base64
import json
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import needs
import qbayes as qb
from end_to_end.pages import Visit, served
from qbayes.cli.commands.export import _Reader
from qbayes.export import TARGETS, make_target
from qbayes.export.web.runtime_files import is_vendored

needs.package("onnx")
needs.require(is_vendored(), needs.WEB_RUNTIME)

SEVEN = ((0.25, 0.2), (0.75, 0.2), (0.55, 0.5), (0.4, 0.85))
# float32, rounded in another order; and a code of the answer, which moves a probability by less than that.
SAME, CODE = 1e-5, 0.03


def quantised(posterior: qb.NetworkPosterior, task: qb.Task, precision: str) -> qb.Program:
    bits = [int(n) for n in precision.removeprefix("W").split("A")]
    settings = qb.Precision(weight=bits[0], activation=bits[1])
    return qb.lower(
        qb.quantize(posterior, task, settings, qb.FineTuning(epochs=0), device="cpu", progress=False)
    )


class Exported:
    """A page of one method on one task, with what Python answers by."""

    def __init__(self, folder: Path, task: qb.Task, network: Any, method: qb.Method, epochs: int) -> None:
        self.folder, self.task = folder, task
        budget = qb.Budget(epochs=epochs, batch_size=64)
        self.float = qb.fit(network, task, method, budget, device="cpu", progress=False)
        self.programs = {name: quantised(self.float, task, name) for name in ("W8A8", "W4A4")}
        first, *beside = self.programs.values()
        read = TARGETS["web"].read({"examples": 6}, _Reader(first, None, None))
        target = make_target("web", beside=tuple(beside), float_posterior=self.float, **read)
        target.write(first, folder)

    def answers(self, row: list[float], draws: int, seed: int) -> dict[str, qb.Predictive]:
        x = torch.tensor(row).view(1, *self.task.signature.input_shape)
        found = {"float": self.float.predict(x, draws=draws, seed=seed)}
        for name, program in self.programs.items():
            found[name] = qb.load(program, backend="reference").predict(x, draws=draws, seed=seed)
        return found


METHODS = {
    "pointwise": qb.method("pointwise"),
    "mcd": qb.method("mcd", rate=0.2),
    "bbb": qb.method("bbb", prior_sigma=0.3, kl_weight=0.1),
    "sghmc": qb.method("sghmc", members=3, every=1),
}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    task = qb.load_task("digits")
    network = qb.network("lenet", task, style="relu")
    return Exported(tmp_path_factory.mktemp("web") / "digits", task, network, METHODS["mcd"], 4)


@pytest.fixture(scope="module")
def diabetes(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    task = qb.load_task("diabetes")
    network = qb.network("mlp", task, hidden=[16])
    return Exported(tmp_path_factory.mktemp("web") / "diabetes", task, network, METHODS["bbb"], 20)


@pytest.fixture
def visit(browser: Any) -> Iterator[Visit]:
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    yield Visit(page)
    page.close()


def check_classes(found: dict[str, Any], wanted: dict[str, qb.Predictive]) -> None:
    assert list(found) == list(wanted)
    for name, predictive in wanted.items():
        bound = SAME if name == "float" else CODE
        apart = np.abs(np.array(found[name]["draws"]) - predictive.draws[:, 0].numpy()).max(-1)
        assert apart.max() <= bound
        assert (apart <= SAME).mean() >= 0.9
        stats = found[name]["stats"]
        np.testing.assert_allclose(stats["mean"], predictive.mean[0].numpy(), atol=bound)
        assert stats["entropy"] == pytest.approx(float(predictive.entropy), abs=3 * bound)
        assert stats["model"] == pytest.approx(float(predictive.mutual_information), abs=3 * bound)
        assert stats["data"] + stats["model"] == pytest.approx(stats["entropy"])


def test_a_drawn_digit_is_answered_as_python_does(visit: Visit, digits: Exported) -> None:
    with served(digits.folder) as address:
        visit.open(address)
        assert visit.page.locator("#empty").is_visible()
        visit.stroke(*SEVEN)
        found = visit.drawn()
        row = visit.input()
        assert len(row) == 64
        assert min(row) == 0
        assert max(row) == pytest.approx(16, abs=0.5)
        check_classes(found, digits.answers(row, draws=20, seed=0))
        # what is shown is what was computed.
        label = visit.page.locator("#verdict b").inner_text()
        assert label == digits.task.signature.labels[found["W8A8"]["stats"]["best"]]
        assert visit.page.locator(".plates .draw").count() == 20
        assert visit.page.locator(".bars .class").count() == 10
        assert [text.strip() for text in visit.page.locator("#models tbody th").all_inner_texts()] == [
            "float",
            "W8A8",
            "W4A4",
        ]
        assert visit.complaints == []
        assert all(request.startswith((address, "data:")) for request in visit.requests)


def test_seed_and_draws_are_chosen_on_the_page(visit: Visit, digits: Exported) -> None:
    with served(digits.folder) as address:
        visit.open(address).page.locator("#example-list button").first.click()
        before = visit.drawn()
        assert visit.input() == digits.task.batches("test", 1).__next__()[0].flatten().tolist()
        visit.page.fill("#seed", "123456789012")
        visit.page.press("#seed", "Enter")
        visit.page.locator("#count").fill("7")
        check_classes(visit.drawn(7), digits.answers(visit.input(), draws=7, seed=123456789012))
        visit.page.locator("#again").click()
        visit.until("document.getElementById('seed').value !== '123456789012'")
        seed = int(visit.page.input_value("#seed"))
        again = visit.drawn(7)
        check_classes(again, digits.answers(visit.input(), draws=7, seed=seed))
        assert again["W8A8"]["draws"] != before["W8A8"]["draws"][:7]
        visit.page.locator("#models input[value=W4A4]").check()
        visit.until("document.getElementById('shown-name').textContent.includes('W4A4')")
        visit.page.fill("#seed", "-1")
        visit.page.press("#seed", "Enter")
        assert "whole number" in visit.told("seed")


@pytest.mark.parametrize("method", ["pointwise", "bbb", "sghmc"])
def test_every_method_answers_as_python_does(
    visit: Visit, digits: Exported, tmp_path: Path, method: str
) -> None:
    network = qb.network("mlp", digits.task, hidden=[24])
    exported = Exported(tmp_path / "page", digits.task, network, METHODS[method], 3)
    with served(exported.folder) as address:
        visit.open(address).page.locator("#example-list button").nth(1).click()
        check_classes(visit.drawn(), exported.answers(visit.input(), draws=20, seed=0))
        assert visit.complaints == []


def png(grey: np.ndarray) -> bytes:
    """A greyscale PNG of 8 bits."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = grey.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in grey)
    packed = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + packed


def drop(visit: Visit, content: bytes, name: str) -> None:
    visit.page.evaluate(
        """([text, name]) => {
            const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
            const held = new DataTransfer();
            held.items.add(new File([bytes], name, {type: "image/png"}));
            document.dispatchEvent(new DragEvent("drop", {dataTransfer: held, cancelable: true}));
        }""",
        [base64.b64encode(content).decode(), name],
    )


def test_a_dropped_image_is_read_as_it_is(visit: Visit, digits: Exported) -> None:
    """32 × 32 pixels of which 4 × 4 make one of the network's: the mean, in raw units of 0 … 16."""
    grey = np.random.default_rng(0).integers(0, 256, (32, 32), np.uint8)
    wanted = grey.reshape(8, 4, 8, 4).mean((1, 3)) / 255 * 16
    with served(digits.folder) as address:
        drop(visit.open(address), png(grey), "noise.png")
        found = visit.drawn()
        np.testing.assert_allclose(visit.input(), wanted.ravel(), atol=1e-4)
        check_classes(found, digits.answers(visit.input(), draws=20, seed=0))
        visit.page.locator("#inverted").check()
        visit.until("first => Math.abs(qbayesPage.input()[0] - first) < 1e-3", 16 - wanted[0, 0])
        drop(visit, b"no image at all", "broken.png")
        assert "“broken.png” cannot be read as an image" in visit.told("cannot be read")


def test_a_row_is_answered_as_python_does(visit: Visit, diabetes: Exported) -> None:
    x, _ = next(diabetes.task.batches("test", 1))
    with served(diabetes.folder) as address:
        visit.open(address)
        visit.drawn()  # of the mean row, without being asked
        visit.page.fill("#row", "\t".join(str(n) for n in x[0].tolist()))
        visit.page.press("#row", "Enter")
        visit.until("age => Math.abs(qbayesPage.input()[0] - age) < 1e-6", float(x[0, 0]))
        found, wanted = visit.drawn(), diabetes.answers(visit.input(), draws=20, seed=0)
        for name, predictive in wanted.items():
            scale = float(predictive.variance.sqrt())
            bound = (1e-4 if name == "float" else 0.02) * scale
            stats = found[name]["stats"]
            draws = predictive.draws[:, 0].numpy()
            np.testing.assert_allclose(found[name]["draws"], draws, atol=bound)
            assert stats["mean"] == pytest.approx(float(predictive.mean), abs=bound)
            assert stats["data"] == pytest.approx(float(predictive.data_variance), rel=1e-2)
            assert stats["model"] == pytest.approx(float(predictive.model_variance), rel=0.05)
            low, high = (float(end) for end in predictive.interval(0.9))
            assert (stats["low"], stats["high"]) == pytest.approx((low, high), abs=2 * bound)
        assert visit.page.locator("#distribution svg .curve").count() == 20
        assert visit.complaints == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1, 2, 3", "must have 10 numbers; this one has 3"),
        (", ".join(["1"] * 11), "this one has 11"),
        ("1 2 3 4 five 6 7 8 9 10", "Number 5 of the row, “five”"),
        ("1 2 3 4 NaN 6 7 8 9 10", "no finite number"),
        ("1 2 3 4 1e60 6 7 8 9 10", "no finite number"),
        ("", "has 0"),
    ],
)
def test_a_wrong_row_is_told(visit: Visit, diabetes: Exported, text: str, words: str) -> None:
    with served(diabetes.folder) as address:
        visit.open(address).drawn()
        visit.page.fill("#row", text)
        visit.page.click("#answer-row")
        visit.told(words)
        visit.page.click("#mean-row")
        visit.until("document.getElementById('message').hidden")


def test_a_damaged_model_is_told_and_the_others_answer(
    visit: Visit, digits: Exported, tmp_path: Path
) -> None:
    folder = shutil.copytree(digits.folder, tmp_path / "page")
    model = folder / "models" / "w4a4.onnx"
    content = bytearray(model.read_bytes())
    content[len(content) // 2] ^= 1
    model.write_bytes(content)
    with served(folder) as address:
        visit.open(address)
        assert "models/w4a4.onnx is damaged" in visit.message
        assert visit.page.locator("#models tbody tr").nth(2).locator("input").is_disabled()
        visit.page.locator("#example-list button").first.click()
        visit.until("qbayesPage.answers().W8A8.draws.length === 20")


def test_missing_files_are_told(visit: Visit, digits: Exported, tmp_path: Path) -> None:
    folder = shutil.copytree(digits.folder, tmp_path / "page")
    shutil.rmtree(folder / "models")
    with served(folder) as address:
        visit.open(address)
        assert "models/float.onnx is not on the server" in visit.message
        assert visit.page.evaluate("qbayesPage.state()") == "failed"
    (folder / "manifest.json").write_text("{")
    with served(folder) as address:
        visit.page.goto(address)
        assert "manifest.json is damaged" in visit.told("manifest")


def test_from_the_disk_it_says_what_it_needs(visit: Visit, digits: Exported) -> None:
    visit.page.goto((digits.folder / "index.html").as_uri())
    help_text = visit.page.locator("#waiting .late")
    help_text.wait_for()
    assert "python3 -m http.server" in help_text.inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(browser: Any, digits: Exported, scheme: str) -> None:
    page = browser.new_page(color_scheme=scheme)
    with served(digits.folder) as address:
        Visit(page).open(address)
        colour = "getComputedStyle(document.body).backgroundColor"
        before = page.evaluate(colour)
        assert (before == "rgb(255, 255, 255)") == (scheme == "light")
        page.click("#theme")
        assert page.evaluate(colour) != before
    page.close()


@pytest.mark.parametrize("name", ["digits", "diabetes"])
def test_a_phone_shows_it_without_scrolling_sideways(
    browser: Any, request: pytest.FixtureRequest, name: str
) -> None:
    page = browser.new_page(viewport={"width": 375, "height": 812})
    with served(request.getfixturevalue(name).folder) as address:
        seen = Visit(page).open(address)
        page.locator("#example-list button").first.click()
        seen.drawn()
        assert seen.overflow <= 0
    page.close()


def test_the_keyboard_reaches_everything(visit: Visit, digits: Exported) -> None:
    with served(digits.folder) as address:
        visit.open(address).page.focus("#pad")
        visit.page.keyboard.press("Space")
        for _ in range(8):
            visit.page.keyboard.press("ArrowDown")
        visit.drawn()
        names = visit.page.evaluate(
            "[...document.querySelectorAll('button, input:not([hidden]), canvas[tabindex]')]"
            ".filter((e) => !(e.ariaLabel || e.labels?.length || e.textContent.trim()))"
            ".map((e) => e.outerHTML)"
        )
        assert names == []


def test_the_manifest_says_what_the_page_holds(digits: Exported) -> None:
    told = json.loads((digits.folder / "manifest.json").read_text())
    assert told["range"] == [0, 16]
    assert [model["name"] for model in told["models"]] == ["float", "W8A8", "W4A4"]
    for model in told["models"]:
        assert (digits.folder / model["file"]).stat().st_size == model["bytes"]
    assert len(told["examples"]) == 7  # six of the test data, one of no class
