"""The exported C is clean C99 for two compilers, and no input makes it read or write where it must not."""

import random
import re
import subprocess
from pathlib import Path

import pytest

import needs
from handmade.programs import Maker, every_op
from parity.c_build import SANITIZED, STRICT, compilers, exported, needs_compiler, run
from qbayes.export.targets.c import RUNTIME, TEMPLATES
from qbayes.integer import ops
from qbayes.integer.program import Program

pytestmark = needs_compiler


def regression(members: int = 2) -> Program:
    """Wide ends, and a log-variance that the network computes."""
    make = Maker((2, 5, 4), bits=5, input_bits=16, members=members)
    flat = make.moved(ops.Reshape, make.conv(make.input, 3, 2, grids=2, bias_noise=True), shape=(36,))
    heads = [make.linear(make.mask(flat), 2, relu=False, out_bits=16, grids=1) for _ in range(2)]
    program = make.program(heads[0], noise=[0.0, 0.0])
    outputs = {"mean": heads[0], "log_variance": heads[1]}
    return Program(
        program.values, program.ops, program.input, outputs, program.members, program.signature, {}
    )


def classifier(bits: int, members: int = 2) -> Program:
    make = every_op(bits, members)
    return make.program(make.ops[-1].output)


PROGRAMS = {
    "all ops, 8 bits": lambda: classifier(8),
    "all ops, 3 bits": lambda: classifier(3),
    "regression": regression,
}


# compilers are slow at this much inlined code: the short run has each program once.
SHORT = {"all ops, 8 bits": "gcc", "all ops, 3 bits": "", "regression": "clang"}
BUILDS = [
    pytest.param(name, compiler, marks=() if SHORT[name] == compiler else pytest.mark.full)
    for name in PROGRAMS
    for compiler in ("gcc", "clang")
]


@pytest.mark.parametrize(("name", "compiler"), BUILDS)
def test_it_compiles_clean_and_passes_its_own_test(name: str, compiler: str, tmp_path: Path) -> None:
    needs.program(compiler)
    folder = exported(PROGRAMS[name](), tmp_path / "c")
    for flags in (["-O2"], ["-O3", "-DNETWORK_FLOAT"]):
        made = tmp_path / "test"
        run([compiler, *STRICT, *flags, folder / "network.c", folder / "network_test.c", "-o", made])
        assert run([made]) == "network: the same bits as the reference\n"


SANITIZED_BUILDS = [
    pytest.param(
        name, compiler, marks=() if (name, compiler) == ("all ops, 3 bits", "gcc") else pytest.mark.full
    )
    for name in PROGRAMS
    for compiler in ("gcc", "clang")
]


@pytest.mark.parametrize(("name", "compiler"), SANITIZED_BUILDS)
def test_the_self_test_passes_under_sanitizers(name: str, compiler: str, tmp_path: Path) -> None:
    needs.program(compiler)
    folder = exported(PROGRAMS[name](), tmp_path / "c")
    made = tmp_path / "test"
    sources = [folder / "network.c", folder / "network_test.c"]
    run([compiler, *STRICT, "-O0", *SANITIZED, "-DNETWORK_FLOAT", *sources, "-o", made])
    assert "the same bits" in run([made])


def test_the_makefile_builds_and_tests(tmp_path: Path) -> None:
    folder = exported(classifier(4), tmp_path / "c", name="gesture")
    assert "gesture: the same bits as the reference" in run(["make", "-C", folder, "test", "FLOAT=1"])
    assert not [path for path in folder.iterdir() if "network" in path.name]
    public = re.findall(r"\b(\w+)\(", (folder / "gesture.h").read_text().split("extern", 1)[1])
    assert {name for name in public if name.startswith("gesture_")} == {
        *(f"gesture_{verb}" for verb in ("init", "seek", "draw", "predict", "quantize", "predict_float"))
    }


def test_two_networks_live_in_one_program(tmp_path: Path) -> None:
    """Nothing but functions with the chosen prefix is visible to the linker."""
    for name in ("one", "two"):
        exported(classifier(4 if name == "one" else 2), tmp_path / name, name=name)
        run([compilers()[0], *STRICT, "-c", tmp_path / name / f"{name}.c", "-o", tmp_path / f"{name}.o"])
        symbols = run(["nm", "-g", "--defined-only", tmp_path / f"{name}.o"]).split()[2::3]
        assert symbols
        assert all(symbol.startswith(f"{name}_") for symbol in symbols)


def test_a_changed_weight_fails_the_self_test(tmp_path: Path) -> None:
    folder = exported(classifier(8, members=1), tmp_path / "c")
    data = folder / "network_data.h"
    text = data.read_text()
    first = re.search(r"static const uint8_t c\d+\[\d+\] = \{\n    (\d+),", text)
    assert first is not None
    data.write_text(text[: first.start(1)] + str((int(first[1]) + 64) % 256) + text[first.end(1) :])
    made = tmp_path / "test"
    run([compilers()[0], folder / "network.c", folder / "network_test.c", "-o", made])
    done = subprocess.run([made], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "differs from the reference" in done.stdout


FUZZ = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "network.h"

/* Every call gets memory of exactly the length it is told, so that the sanitizer sees any step beyond. */
int main(int argc, char **argv) {
    unsigned state = (unsigned)atoi(argv[1]), calls = (unsigned)atoi(argv[2]), call;
    long answered = 0;
    (void)argc;
    srand(state);
    for (call = 0; call < calls; call++) {
        size_t in = rand() % 4 ? NETWORK_INPUT_CODES : (size_t)(rand() % (2 * (int)NETWORK_INPUT_CODES));
        size_t codes = rand() % 4 ? NETWORK_CODES : (size_t)(rand() % 9);
        size_t outs = rand() % 4 ? NETWORK_OUTPUTS : (size_t)(rand() % 9);
        network_input *x = malloc(in * sizeof *x + !in);
        network_output *y = malloc(codes * sizeof *y + !codes);
        int32_t *mean = malloc(outs * sizeof *mean + !outs);
        int64_t *variance = malloc(outs * sizeof *variance + !outs), entropy;
        float *raw = malloc(in * sizeof *raw + !in);
        size_t i;
        unsigned top = rand() % 3 ? NETWORK_INPUT_TOP : 0xFFFFu;
        for (i = 0; i < in; i++) x[i] = (network_input)((unsigned)rand() & top);
        for (i = 0; i < in * sizeof *raw; i++) ((unsigned char *)raw)[i] = (unsigned char)rand();
        if (rand() % 8 == 0) network_init((uint64_t)rand() << (rand() % 40));
        if (rand() % 4 == 0) network_seek((uint32_t)rand() * 3u, (uint32_t)rand() * 3u);
        answered += !network_draw(rand() % 9 ? x : NULL, in, rand() % 9 ? y : NULL, codes);
        answered += !network_predict(rand() % 9 ? x : NULL, in, (uint32_t)(rand() % 5), mean,
                                     rand() % 9 ? variance : NULL, &entropy, outs);
        answered += !network_quantize(raw, in, x, in);
        free(x); free(y); free(mean); free(variance); free(raw);
    }
    printf("%ld\n", answered);
    return 0;
}
"""


FUZZED = [("regression", 1, 150), ("all ops, 3 bits", 1, 60)]


@pytest.mark.parametrize(
    ("name", "seed", "calls"),
    [*FUZZED, *(pytest.param(name, 2, 5_000, marks=pytest.mark.full) for name in PROGRAMS)],
)
def test_fuzzed_calls_stay_in_bounds(name: str, seed: int, calls: int, tmp_path: Path) -> None:
    """Wrong lengths, null pointers, codes beyond the grid, any floats: an error code, or an answer."""
    folder = exported(PROGRAMS[name](), tmp_path / "c")
    (folder / "fuzz.c").write_text(FUZZ)
    made = tmp_path / "fuzz"
    sources = [folder / "network.c", folder / "fuzz.c"]
    flags = ["-std=c99", "-O0", *SANITIZED, "-DNETWORK_FLOAT", f"-I{folder}"]
    run([compilers()[-1], *flags, *sources, "-o", made])
    assert int(run([made, str(seed), str(calls)])) > calls // 4


@pytest.mark.full
def test_random_programs_stay_in_bounds(tmp_path: Path) -> None:
    """Odd shapes in a row, each with its own self-test under the sanitizers."""
    dice = random.Random(5)
    for number in range(12):
        make = Maker((dice.randint(1, 4), dice.randint(3, 9), dice.randint(3, 9)), bits=dice.randint(2, 8))
        window = {"padding": dice.randint(0, 3), "grids": dice.choice([0, 1, 2])}
        x = make.conv(make.input, dice.randint(1, 7), dice.randint(1, 3), **window)
        x = make.avg_pool(make.mask(make.max_pool(x, 3, 2, 1)), adaptive=dice.randint(1, 4))
        size = make.values[x].shape[0] * make.values[x].shape[1] * make.values[x].shape[2]
        program = make.program(make.linear(make.moved(ops.Reshape, x, shape=(size,)), 3, relu=False))
        folder = exported(program, tmp_path / str(number))
        made = tmp_path / f"test{number}"
        run([compilers()[0], *SANITIZED, folder / "network.c", folder / "network_test.c", "-o", made])
        assert "the same bits" in run([made])


FORBIDDEN = re.compile(r"\b(malloc|calloc|realloc|free|alloca|goto|setjmp|double|long double|math\.h)\b")


def test_the_runtime_allocates_nothing_and_knows_no_float() -> None:
    """Nor recursion: no function of the runtime is called above the line where it is defined."""
    for path in [*RUNTIME.glob("*.h"), TEMPLATES / "network.c"]:
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        assert not FORBIDDEN.search(text), path
        integer_only = re.sub(r"#ifdef NETWORK_FLOAT.*?\n#endif\n$", "", text, flags=re.DOTALL)
        assert "float" not in integer_only, path
        for found in re.finditer(
            r"^(?:static )?(?:inline )?[\w *]+?\b(\w+)\([^;{]*\) \{$", text, flags=re.MULTILINE
        ):
            body = text[found.end() : text.find("\n}\n", found.end())]
            assert not re.search(rf"\b{found[1]}\(", body), f"{path}: {found[1]} calls itself"
