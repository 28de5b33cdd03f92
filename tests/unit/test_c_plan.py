"""The memory plan of exported C: nothing that lives at once overlaps, and what is dead is used again."""

import itertools
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import needs
from handmade.programs import Maker, every_op
from qbayes.errors import BadFile, BadInput
from qbayes.export import TARGETS, make_target
from qbayes.export.c.data import STRUCT_BYTES, check_name, rename_prefix
from qbayes.export.c.plan import Need, arrange, live, steps_of
from qbayes.export.c.sizes import CODE_BYTES, parse_bytes, size_of
from qbayes.export.targets.c import RUNTIME, CTarget
from qbayes.integer import ops
from qbayes.integer.program import Program


def chain(members: int = 1) -> Program:
    """Convolutions and masks in a row, then a head."""
    make = Maker((2, 8, 8), bits=4, members=members)
    x = make.rescale(make.mask(make.conv(make.input, 4, padding=1)))
    x = make.max_pool(make.conv(x, 4, padding=1))
    return make.program(make.linear(make.moved(ops.Reshape, x, shape=(64,)), 5, relu=False))


@given(
    spans=st.lists(
        st.tuples(st.integers(1, 50), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=15
    )
)
def test_no_two_that_live_at_once_overlap(spans: list[tuple[int, int, int]]) -> None:
    needs = [Need(str(i), "codes", size, min(a, b), max(a, b)) for i, (size, a, b) in enumerate(spans)]
    arena = arrange(needs)
    for one, two in itertools.combinations(needs, 2):
        at = arena.offsets[one.name], arena.offsets[two.name]
        apart = at[0] + one.size <= at[1] or at[1] + two.size <= at[0]
        assert apart or one.last < two.first or two.last < one.first
    assert arena.sizes["codes"] >= max(live(needs, at) for at in range(10))
    assert arena.sizes["codes"] <= sum(need.size for need in needs)


def test_elementwise_ops_write_over_their_input_and_a_reshaped_value_is_the_same_memory() -> None:
    steps = steps_of(chain())
    named = {op.kind: op for op in steps.order}
    assert steps.root[named["rescale"].output] == steps.root[named["rescale"].inputs[0]]
    assert steps.root[named["reshape"].output] == steps.root[named["reshape"].inputs[0]]
    assert steps.root[named["conv"].output] != steps.root[named["conv"].inputs[0]]


def test_what_no_noise_reaches_runs_once_and_is_kept() -> None:
    steps = steps_of(chain())
    assert [op.kind for op in steps.shared] == ["conv"]
    make = Maker((4,), bits=8)
    hidden = make.linear(make.input, 6)
    kept = make.rescale(hidden)
    program = make.program(make.linear(make.add(make.mask(kept), kept), 2, relu=False))
    steps = steps_of(program)
    # the mask may not write over what the next draw reads.
    assert steps.root[steps.drawn[0].output] != steps.root[kept]
    assert steps.last[steps.root[kept]] == len(steps.order)


def test_the_arena_is_smaller_than_all_values_together() -> None:
    make = every_op(8)
    network = CTarget().network(make.program(make.ops[-1].output))
    assert network.arena.bytes < sum(need.size for need in network.needs) / 2


def test_limits_are_met_by_unpacking_fewer_rows_or_refused_with_the_layer() -> None:
    program = chain()
    free = size_of(CTarget().network(program))
    tight = CTarget(ram=str(free.ram - 1)).network(program)
    assert size_of(tight).ram < free.ram
    with pytest.raises(BadInput) as ram:
        CTarget(ram="2200").network(program)
    assert "2,200 bytes of RAM" in ram.value.must
    assert "the layer 'conv3' needs" in ram.value.got
    with pytest.raises(BadInput) as flash:
        CTarget(flash="13k").network(program)
    assert "13,312 bytes of flash" in flash.value.must
    assert f"{CODE_BYTES:,} for code" in flash.value.got
    assert CTarget(flash=str(free.flash), ram=str(free.ram)).network(program)


def test_flash_of_an_ensemble_blames_its_members() -> None:
    make = Maker((300,), bits=8, members=3)
    program = make.program(make.linear(make.linear(make.input, 40), 4, relu=False))
    with pytest.raises(BadInput) as refusal:
        CTarget(flash="20k").network(program)
    assert "the layer 'linear0' alone takes" in refusal.value.got
    assert "in 3 members" in refusal.value.got
    assert "keep fewer members" in refusal.value.do


@pytest.mark.parametrize(
    ("text", "count"), [("65536", 65536), ("256k", 262144), ("1M", 1 << 20), ("2 KiB", 2048)]
)
def test_sizes_are_read(text: str, count: int) -> None:
    assert parse_bytes("--flash", text) == count


@pytest.mark.parametrize("text", ["", "0", "-3k", "many", "1.5M", "k", "12q"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--ram"):
        parse_bytes("--ram", text)


@pytest.mark.parametrize(
    "name", ["", "2fast", "my-net", "naïve", "int", "class", "_net", "qb_net", "a b", "x" * 40]
)
def test_names_that_are_no_identifiers_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match="name"):
        check_name(name)


def test_a_template_is_renamed_where_it_names_the_network() -> None:
    text = '#include "network.h"\nint network_init(void); /* a network is */ NETWORK_OK'
    assert rename_prefix(text, "net2") == '#include "net2.h"\nint net2_init(void); /* a network is */ NET2_OK'


def test_names_of_layers_cannot_leave_their_comment(tmp_path: Path) -> None:
    make = Maker((3,), bits=8)
    make.linear(make.input, 2, relu=False)
    op = make.ops[0]
    hostile = type(op)("*/ evil(); /*\\", op.inputs, op.output, op.weights, op.features_in, op.features_out)  # pyright: ignore
    make.ops[0], make.constants[0] = hostile, {hostile.name: make.constants[0][op.name]}
    text = CTarget().network(make.program(op.output)).text
    assert "evil" in text
    assert not re.search(r"/\*[^*]*(/\*|\\)", text)
    assert "*/ evil" not in text


def test_a_head_that_is_the_input_is_refused() -> None:
    make = Maker((4,), bits=8)
    make.linear(make.input, 2)
    same = make.moved(ops.Reshape, make.input, shape=(4,))
    with pytest.raises(BadInput, match="computed"):
        CTarget().network(make.program(same))


def test_the_registry_knows_c_and_refuses_options_of_other_targets() -> None:
    assert "c" in TARGETS
    with pytest.raises(BadInput, match="option"):
        make_target("c", opset=3)
    with pytest.raises(BadInput, match="target"):
        make_target("cc")


def test_folders_that_hold_files_are_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(BadFile, match="empty folder"):
        CTarget().write(chain(), tmp_path)
    CTarget().write(chain(), tmp_path, overwrite=True)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert (tmp_path / "network.c").exists()
    with pytest.raises(BadFile, match="folder"):
        CTarget().write(chain(), tmp_path / "mine.txt")


def test_the_same_program_gives_the_same_files() -> None:
    target = CTarget()
    assert target.files(target.network(chain())) == target.files(target.network(chain()))


_FIELD = {"uint8_t": 1, "int8_t": 1, "uint32_t": 4, "int32_t": 4}


def test_structs_take_the_room_that_they_are_counted_with() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(RUNTIME.glob("*.h")))
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    for name, counted in STRUCT_BYTES.items():
        (body,) = re.findall(rf"typedef struct \{{([^}}]*)\}} {name};", text)
        size = 0
        for kind, fields in re.findall(r"(?:const )?(\w+) ([^;]+);", body):
            for one in fields.split(","):
                width = 4 if one.strip().startswith("*") else _FIELD[kind]
                size = -(-size // width) * width + width
        assert -(-size // 4) * 4 == counted, name


@pytest.mark.parametrize("name", ["run", "checked", "recorded", "gesture"])
def test_every_name_reaches_all_of_the_c(name: str, tmp_path: Path) -> None:
    CTarget(name=name).write(chain(), tmp_path / "c")
    assert f"-D{name.upper()}_FLOAT" in (tmp_path / "c" / "Makefile").read_text(encoding="utf-8")
    needs.program("make", "cc")
    command = ["make", "-C", str(tmp_path / "c"), "FLOAT=1", "test"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"{name}: the same bits as the reference" in done.stdout, done.stderr
    assert f"{name}_predict_float".encode() in (tmp_path / "c" / f"{name}_test").read_bytes()


def test_a_path_that_no_system_takes_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path / ("x" * 300), tmp_path / "a\0b"):
        with pytest.raises(BadFile, match="writable"):
            CTarget().write(chain(), place)


def test_a_folder_in_the_way_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Makefile").mkdir()
    with pytest.raises(BadFile, match="writable"):
        CTarget().write(chain(), tmp_path, overwrite=True)
    assert list((tmp_path / "Makefile").iterdir()) == []
