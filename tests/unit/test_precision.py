"""Precision: a small value that checks itself, merges overrides, and survives JSON."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbayes.errors import BadInput
from qbayes.posterior.likelihood import Categorical, Gaussian
from qbayes.quant.precision import BITS, ENDS, OF_A_LAYER, Precision

bits = st.integers(2, 8)
rules = st.sampled_from(["minmax", "ema", "percentile", "mse", "lsq"])
LAYER = {
    "weight": bits,
    "activation": bits,
    "granularity": st.sampled_from(["channel", "tensor"]),
    "weight_range": rules,
    "activation_range": rules,
    "sigma": st.none() | bits,
}
OTHERS = {
    "weight_scheme": st.sampled_from(["symmetric", "affine"]),
    "activation_scheme": st.sampled_from(["symmetric", "affine"]),
    "input": st.none() | st.just("auto") | st.integers(2, 16),
    "output": st.none() | st.just("auto") | st.integers(2, 16),
    "noise": bits,
    "gaussian": st.sampled_from(["keep", "single"]),
    "mask": st.sampled_from(["exact", "product"]),
}
layers = st.fixed_dictionaries({}, optional=LAYER)
precisions = st.builds(
    lambda options, overrides: Precision(**options, overrides=overrides),
    st.fixed_dictionaries({}, optional={**LAYER, **OTHERS}),
    st.dictionaries(st.text("abc.*?[]", min_size=1, max_size=6), layers, max_size=4),
)
hostile = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(precisions)
def test_json_round_trip_is_exact(precision: Precision) -> None:
    again = Precision.from_json(json.loads(json.dumps(precision.to_json(), sort_keys=True)))
    # sorting the keys may reorder an override's options, never the overrides.
    assert again.to_json() == precision.to_json()
    assert hash(again) == hash(Precision.from_json(again.to_json()))
    assert {again: 1}[Precision.from_json(again.to_json())] == 1


@given(precisions, st.sampled_from([field.name for field in dataclasses.fields(Precision)]), hostile)
def test_hostile_json_is_refused_or_means_what_it_says(precision: Precision, name: str, value: Any) -> None:
    data = {**precision.to_json(), name: value}
    try:
        found = Precision.from_json(data)
    except BadInput:
        return
    assert json.dumps(found.to_json()) == json.dumps(data)


@pytest.mark.parametrize("data", [None, [], "W8A8", 3, {}, {"weight": 8}, {1: 2}])
def test_json_of_another_form_is_refused(data: Any) -> None:
    with pytest.raises(BadInput, match="must have exactly the fields"):
        Precision.from_json(data)


def test_json_lacking_or_adding_a_field_is_refused() -> None:
    data = Precision().to_json()
    with pytest.raises(BadInput, match="extra"):
        Precision.from_json({**data, "extra": 1})
    with pytest.raises(BadInput, match="noise"):
        Precision.from_json({name: value for name, value in data.items() if name != "noise"})


@pytest.mark.parametrize("name", BITS)
@pytest.mark.parametrize("value", [0, 1, 17, -3, 4.0, "4", True, [4], "AUTO"])
def test_bits_outside_2_to_8_are_refused(name: str, value: Any) -> None:
    most = 16 if name in ENDS else 8
    with pytest.raises(BadInput, match=f"{name} must be a whole number of bits from 2 to {most}"):
        Precision(**{name: value})


@pytest.mark.parametrize("name", [name for name in BITS if name not in ENDS])
@pytest.mark.parametrize("value", [9, 16, "auto"])
def test_only_the_ends_may_be_wider_than_a_byte_or_automatic(name: str, value: Any) -> None:
    with pytest.raises(BadInput, match=f"{name} must be a whole number of bits from 2 to 8"):
        Precision(**{name: value})
    assert [getattr(Precision(**{end: value}), end) for end in ENDS] == [value, value]


@pytest.mark.parametrize("end", ENDS)
def test_an_end_that_is_too_wide_is_told_in_three_parts(end: str) -> None:
    with pytest.raises(BadInput) as caught:
        Precision(**{end: 17})
    must = f"{end} must be a whole number of bits from 2 to 16, or None to follow activation, or 'auto'"
    assert (caught.value.must, caught.value.got, caught.value.do) == (must, "17", f"change {end}")


def test_the_likelihood_settles_the_bits_of_the_ends() -> None:
    """8 for a classifier, 16 for a regression; what was said stays as it was said."""
    classes, target = Categorical(3), Gaussian((2,))
    automatic = Precision(4, 4, overrides={"a": {"weight": 2}})
    assert (automatic.input, automatic.output) == ("auto", "auto")
    assert (automatic.input_bits, automatic.output_bits) == (8, 8)
    assert automatic.for_likelihood(classes) == dataclasses.replace(automatic, input=8, output=8)
    assert automatic.for_likelihood(target) == dataclasses.replace(automatic, input=16, output=16)
    for bits in (None, 2, 8, 9, 16):
        said = Precision(4, 4, input=bits, output=bits)
        assert said.for_likelihood(classes) == said.for_likelihood(target) == said
        one = Precision(4, 4, input=bits).for_likelihood(target)
        assert (one.input, one.output) == (bits, 16)
    paper = Precision.preset("paper").for_likelihood(target)
    assert (paper.input_bits, paper.output_bits) == (7, 7)
    old = Precision.from_json({**automatic.to_json(), "input": 8, "output": 8}).for_likelihood(target)
    assert (old.input_bits, old.output_bits) == (8, 8)


def test_only_input_output_and_sigma_may_follow() -> None:
    precision = Precision(weight=3, activation=5, input=None, output=None, sigma=None)
    assert (precision.input_bits, precision.output_bits, precision.sigma_bits) == (5, 5, 3)
    own = Precision(weight=3, activation=5, input=6, output=7, sigma=4)
    assert (own.input_bits, own.output_bits, own.sigma_bits) == (6, 7, 4)
    for name in ("weight", "activation", "noise"):
        with pytest.raises(BadInput, match=name):
            Precision(**{name: None})


@pytest.mark.parametrize(
    ("name", "wrong", "meant"),
    [
        ("weight_scheme", "symetric", "symmetric"),
        ("activation_scheme", "afine", "affine"),
        ("granularity", "chanel", "channel"),
        ("weight_range", "minmx", "minmax"),
        ("activation_range", "percentil", "percentile"),
        ("gaussian", "singel", "single"),
        ("mask", "exakt", "exact"),
    ],
)
def test_misspelt_names_are_answered_with_the_nearest(name: str, wrong: str, meant: str) -> None:
    with pytest.raises(BadInput, match=f"did you mean '{meant}'"):
        Precision(**{name: wrong})


def test_later_patterns_win_and_merge() -> None:
    precision = Precision(
        weight=4,
        activation=4,
        overrides={
            "block.*": {"weight": 3, "sigma": 5},
            "block.1.*": {"weight": 2},
            "head": {"activation": 8},
        },
    )
    inner = precision.for_layer("block.1.conv")
    assert (inner.weight, inner.sigma, inner.activation) == (2, 5, 4)
    assert precision.for_layer("block.2.conv").label == "W3A4"
    assert precision.for_layer("head").label == "W4A8"
    assert precision.for_layer("stem") == dataclasses.replace(precision, overrides=())
    turned = dataclasses.replace(precision, overrides=tuple(reversed(precision.overrides)))
    assert turned.for_layer("block.1.conv").weight == 3


def test_overrides_come_as_a_mapping_or_as_pairs() -> None:
    mapping = Precision(overrides={"a": {"weight": 4, "sigma": None}, "b": {"activation": 3}})
    assert mapping.overrides == (("a", (("weight", 4), ("sigma", None))), ("b", (("activation", 3),)))
    assert Precision(overrides=mapping.overrides) == mapping
    assert len({mapping, Precision(overrides=mapping.overrides), Precision()}) == 2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"head": {"weight": 9}}, "override 'head': weight must be"),
        ({"head": {"wieght": 4}}, "did you mean 'weight'"),
        ({"head": {"noise": 4}}, "option of the override 'head'"),
        ({"head": {"granularity": "rows"}}, "override 'head'"),
        ({"head": 8}, "a layer name and its options"),
        ({3: {"weight": 8}}, "a layer name and its options"),
        ("head", "a mapping from layer names"),
        (7, "a mapping from layer names"),
        ([["a", {"weight": 3}], ["a", {"weight": 4}]], "each pattern of layer names once"),
        ((("a", ("weight", 3)),), "options by name"),
    ],
)
def test_bad_overrides_are_refused(overrides: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Precision(overrides=overrides)


def test_overrides_that_are_added_win_over_those_before() -> None:
    """Where a pattern stood there already, its old and new options stand at the end together."""
    precision = Precision(overrides={"a*": {"weight": 4, "activation": 6}, "ab": {"weight": 2}})
    more = precision.with_overrides({"a*": {"weight": 5}})
    assert [pattern for pattern, _ in more.overrides] == ["ab", "a*"]
    layer = more.for_layer("ab")
    assert (layer.weight, layer.activation) == (5, 6)


def test_an_override_that_matches_no_layer_is_refused() -> None:
    precision = Precision(overrides={"conv*": {"weight": 4}, "haed": {"weight": 8}})
    with pytest.raises(BadInput, match="'haed' matches none") as caught:
        precision.check_overrides(["conv1", "conv2", "head"])
    assert "did you mean 'head'" in caught.value.do
    precision.check_overrides(["conv1", "haed"])
    Precision().check_overrides([])


def test_every_option_of_a_layer_can_be_overridden() -> None:
    values = {"weight": 2, "activation": 3, "granularity": "tensor", "weight_range": "ema", "sigma": 7}
    values["activation_range"] = "mse"
    assert set(values) == set(OF_A_LAYER)
    layer = Precision(overrides={"x": values}).for_layer("x")
    assert {name: getattr(layer, name) for name in values} == values


def test_the_paper_preset_is_the_scheme_of_the_paper() -> None:
    """Affine, one grid a tensor, moving averages, n bits everywhere, ε int8, one grid, the mask's bug."""
    paper = Precision.preset("paper", weight=3, activation=5)
    assert paper.label == "W3A5"
    assert (paper.weight_scheme, paper.activation_scheme, paper.granularity) == ("affine", "affine", "tensor")
    assert (paper.weight_range, paper.activation_range) == ("ema", "ema")
    assert (paper.input_bits, paper.output_bits, paper.sigma_bits, paper.noise) == (5, 5, 3, 8)
    assert (paper.gaussian, paper.mask) == ("single", "product")
    assert Precision.preset("paper").label == "W8A7"


def test_the_default_preset_and_an_unknown_one() -> None:
    assert Precision.preset("default") == Precision()
    assert Precision.preset("default", weight=4) == Precision(weight=4)
    with pytest.raises(BadInput, match="did you mean 'paper'"):
        Precision.preset("papr")


def test_numbers_of_numpy_become_plain() -> None:
    precision = Precision(weight=np.int64(4), overrides={"a": {"weight": np.int32(3)}})  # type: ignore[dict-item]
    assert precision == Precision(weight=4, overrides={"a": {"weight": 3}})
    assert json.loads(json.dumps(precision.to_json()))["weight"] == 4
