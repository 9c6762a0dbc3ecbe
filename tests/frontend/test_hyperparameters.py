"""Parameters from a file's metadata, and the kind of each layer."""

from collections.abc import Mapping
from time import process_time
from typing import Any

import numpy as np
import pytest
from ggufc.frontend.archdef.parser import parse
from ggufc.frontend.errors import InputError, UnsupportedError
from ggufc.frontend.hyperparameters import Hyperparameters, evaluate

STEPS = """
prologue
  x = embed tokens, token_embd.weight
block
  x = rms_norm x, blk.{i}.norm.weight, eps = 1
epilogue
  x = linear x, output.weight
"""


def evaluated(lines: str, metadata: Mapping[str, Any], tensors: tuple[str, ...] = ()) -> Hyperparameters:
    """The parameters that `lines` declare, and under a line `layers` its kinds, for a model of six layers."""
    parameters = "\n".join(f"  {line}" if line != "layers" else line for line in ["layers n", *lines.splitlines()])
    definition = parse(f"arch toy\nkind decoder\nparameters\n{parameters}\n{STEPS}", "toy.archdef")
    return evaluate(definition, {"toy.n": 6} | dict(metadata), lambda name: name in tensors, "toy.gguf")


@pytest.mark.parametrize(
    ("lines", "metadata", "value"),
    [
        ("a key", {"toy.key": 5}, 5),
        ("a key", {"toy.key": 0.5}, 0.5),
        ("a key", {"toy.key": True}, 1),
        ("a key", {"toy.key": np.uint32(5)}, 5),
        ("a key", {"toy.key": "linear"}, "linear"),
        ("a general.key", {"general.key": 5}, 5),
        ("a tokenizer.key", {"tokenizer.key": 5}, 5),
        ("a key = 7", {}, 7),
        ("a key = 7", {"toy.key": 0}, 0),
        ("a key = layers * 2", {}, 12),
        ('a key = "none"', {}, "none"),
        ("a = 640 / 4", {}, 160),
        ("a = 1 / 4", {}, 0.25),
        ("a = floor(7 / 2)", {}, 3),
        ("a = log(1) + floor(0 - 0.5)", {}, -1.0),
        ("a = sqrt(layers + 3) - -1", {}, 4.0),
        ("a = min(max(layers, 7), 9)", {}, 7),
        ("a = 1\na = 2 when layers is 6", {}, 2),
        ("a = 1\na = 2 when layers is 62", {}, 1),
        ('s key = "x"\na = 1\na = 2 when s is "x"', {}, 2),
        ('s key = "x"\na = 1\na = 2 when s is "x"', {"toy.key": "y"}, 1),
        ("a = 1\na = a + 1 when layers is 6", {}, 2),
        ("a key", {"toy.key": np.arange(6)}, (0, 1, 2, 3, 4, 5)),
        ("a key", {"toy.key": np.array([True, False] * 3)}, (1, 0) * 3),
        ("b key\na = b * 2 + layers", {"toy.key": np.arange(6)}, (6, 8, 10, 12, 14, 16)),
        ("b key\nc other\na = b / c", {"toy.key": np.full(6, 8), "toy.other": np.full(6, 2)}, (4,) * 6),
    ],
)
def test_the_value_of_a_parameter(lines: str, metadata: dict[str, Any], value: object) -> None:
    found = evaluated(lines, metadata).values["a"]
    assert found == value
    assert type(found) is type(value)


FLAGS = np.array([1, 0, 0, 1, 1, 0])


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        ("every 3", [2, 5]),
        ("first_of_every 3", [0, 3]),
        ("first 2", [0, 1]),
        ("last 2", [4, 5]),
        ("first layers / 2", [0, 1, 2]),
        ("where flags", [0, 3, 4]),
        ("where layers", [0, 1, 2, 3, 4, 5]),
        ("without flags", [1, 2, 5]),
        ("without zero", [0, 1, 2, 3, 4, 5]),
        # llama.cpp's set_swa_pattern: the last of each period is the odd one, a period of 0 makes all alike
        ("pattern 3", [0, 1, 3, 4]),
        ("pattern 1", []),
        ("pattern 0", [0, 1, 2, 3, 4, 5]),
        ("pattern flags", [0, 3, 4]),
        ("with blk.{i}.bias", [1, 4]),
        ("with blk.{i}.scale | blk.{i}.bias", [1, 2, 4]),
        ("with blk.{i}.none", []),
        ("where flags and first 4", [0, 3]),
        ("every 2 and every 3", [5]),
    ],
)
def test_the_layers_that_a_selector_chooses(selector: str, chosen: list[int]) -> None:
    lines = f"flags key\nzero = 0\nlayers\nyes {selector}\nno otherwise"
    tensors = ("blk.1.bias", "blk.4.bias", "blk.2.scale")
    found = evaluated(lines, {"toy.key": FLAGS}, tensors)
    assert [layer.index for layer in found.layers if layer.kinds == ("yes",)] == chosen
    assert all(layer.kinds in (("yes",), ("no",)) for layer in found.layers)


def test_whole_numbers_may_be_stored_as_floats() -> None:
    found = evaluated("period key\nlayers\na every period\nb otherwise", {"toy.n": 6.0, "toy.key": np.float32(3)})
    assert [layer.kinds[0] for layer in found.layers] == ["b", "b", "a", "b", "b", "a"]


def test_work_is_bounded_before_it_is_done() -> None:
    """Words times layers, whether the layers come from their number or from an array that is read before it."""
    lines = "b key\n" + "\n".join(f"a{n} = b * {n}" for n in range(1000))
    start = process_time()
    for metadata in ({"toy.n": 4096, "toy.key": 1}, {"toy.key": np.ones(4096)}):
        with pytest.raises(InputError, match="words for each of 4096 layers are more than 1048576"):
            evaluated(lines, metadata)
    assert len(evaluated(lines, {"toy.n": 128, "toy.key": np.ones(128)}).layers) == 128
    assert process_time() - start < 10


@pytest.mark.parametrize("blocks", [4097, 2**32 - 1, -1, 6.5, "six", np.arange(6)])
def test_a_number_of_blocks_that_no_file_has_is_refused_at_once(blocks: object) -> None:
    with pytest.raises(InputError, match=r"^toy.gguf: key 'toy.block_count' is .*, wanted a whole number up to 4096$"):
        evaluated("", {"toy.block_count": blocks})


@pytest.mark.parametrize("found", [2, "yes", np.array([0, 1, 2])])
def test_what_a_definition_cannot_do_is_unsupported(found: object) -> None:
    with pytest.raises(UnsupportedError, match=r"toy.gguf: key 'toy.key' is .*; toy.archdef can do 0 or 1 alone"):
        evaluated("a key = 0 only 0, 1", {"toy.key": found})
    assert evaluated("a key = 0 only 0, 1", {"toy.key": 1}).values["a"] == 1
    assert evaluated("a key = 0 only 0, 1", {}).values["a"] == 0


def test_a_message_does_not_hold_all_that_another_key_holds() -> None:
    with pytest.raises(UnsupportedError) as error:
        evaluated("a first\nb key = a only a", {"toy.first": np.arange(1, 2001), "toy.key": 7})
    assert len(str(error.value)) < 250


def test_a_definition_may_do_what_another_parameter_says_alone() -> None:
    lines = "size first\na key = size only size, 0"
    for given in ({}, {"toy.key": 8}, {"toy.key": 0}):
        assert evaluated(lines, {"toy.first": 8, **given}).values["a"] == given.get("toy.key", 8)
    with pytest.raises(UnsupportedError, match=r"key 'toy.key' is 4; toy.archdef can do 8 or 0 alone \(line 6\)"):
        evaluated(lines, {"toy.first": 8, "toy.key": 4})


def test_the_first_kind_that_fits_is_taken() -> None:
    found = evaluated("layers\na first 1\nb first 2\nc otherwise", {})
    assert [layer.kinds[0] for layer in found.layers] == ["a", "b", "c", "c", "c", "c"]


def test_a_layer_has_its_own_share_of_arrays_and_what_its_kind_gives() -> None:
    found = evaluated("heads key\nlayers\na first 1 : span = heads * 2\nb otherwise : span = 0", {"toy.key": FLAGS})
    assert [layer.values["heads"] for layer in found.layers] == list(FLAGS)
    assert [layer.values["span"] for layer in found.layers] == [2, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("lines", "metadata", "message"),
    [
        ("a key", {}, "toy.archdef:5:1: the file has no key 'toy.key', which toy needs for 'a' (did you mean 'toy"),
        (
            "a key",
            {"toy.key": [1, 2]},
            "toy.archdef:5:1: key 'toy.key' holds list, wanted a number, a text",
        ),
        ("a key", {"toy.key": float("inf")}, "toy.archdef:5:1: key 'toy.key' is not a finite number"),
        ("a key", {"toy.key": np.array([1, np.nan])}, "toy.archdef:5:1: key 'toy.key' is not a finite number"),
        ("a key", {"toy.key": np.ones(5)}, "toy.archdef:5:1: key 'toy.key' has 5 values, wanted one per"),
        (
            "a key",
            {"toy.key": np.ones(5), "toy.block_count": 5},
            "toy.archdef:5:1: 'a' has a value for each of 5 blocks, and 'layers' is 6",
        ),
        ("a key", {"toy.key": np.ones(9000)}, "toy.archdef:5:1: key 'toy.key' has 9000 values, wanted a number or one"),
        ("b key\na = b * 2", {"toy.key": "two"}, "toy.archdef:6:1: the text 'two' stands where a number is wanted"),
        ("b key\na = 2 / b", {"toy.key": 0}, "toy.archdef:6:1: division by zero: 'b' is 0"),
        ("b key\na = 2 / b", {"toy.key": FLAGS}, "toy.archdef:6:1: division by zero"),
        (
            "s first\nh = s / 6\na key = h only h",
            {"toy.first": 32, "toy.key": 16},
            "toy.archdef:7:1: 'h' comes out as 5.333333333333333, wanted a whole number from 1",
        ),
        ("h = 0 - 2\na key = h only h", {"toy.key": 16}, "toy.archdef:6:1: 'h' comes out as -2, wanted a whole"),
        ("a = sqrt(0 - 4)", {}, "toy.archdef:5:1: sqrt has no value for -4"),
        ("a = log(layers - 6)", {}, "toy.archdef:5:1: log has no value for 0"),
        ("a = 1e18 * 1e18", {}, "toy.archdef:5:1: * of 1e+18, 1e+18 is out of range"),
        ("a = 1\na = 2 when layer is 1", {}, "toy.archdef:6:1: 'when' names 'layer', which has no value yet (did you"),
        ("", {"toy.n": 0}, "toy.archdef:4:1: 'layers' is 0, wanted a whole number from 1 to 4096"),
        ("", {"toy.n": 6.5}, "toy.archdef:4:1: 'layers' is 6.5, wanted a whole number from 1 to 4096"),
        ("a key = sqrt(0 - 4)", {"toy.key": 1}, "toy.archdef:5:1: sqrt has no value for -4"),
        ("layers\na every -1\nb otherwise", {}, "toy.archdef:6:1: every takes a whole number from 1, found -1"),
        (
            "a key\nlayers\nb every a\nc otherwise",
            {"toy.key": 0},
            "toy.archdef:7:1: every takes a whole number from 1, found 0",
        ),
        (
            "a key\nlayers\nb every a\nc otherwise",
            {"toy.key": FLAGS},
            "toy.archdef:7:1: every takes a whole number from 1, found 0",
        ),
        ("layers\na pattern 1.5\nb otherwise", {}, "toy.archdef:6:1: pattern takes a whole number from 0, found 1.5"),
        ("", {"toy.n": 10**6}, "toy.archdef:4:1: 'layers' is 1000000, wanted a whole number from 1 to 4096"),
        ("", {"toy.n": "six"}, "toy.archdef:4:1: 'layers' is 'six', wanted a whole number from 1 to 4096"),
        ("a = 1\nlayers\nk otherwise : a = 2", {}, "toy.archdef:7:1: 'a' "),
        ('a = 2\na = 1 when a is "x"', {}, "toy.archdef:6:1: 'a' is 2, and 'when' asks whether it is 'x'"),
        (
            "a key\na = 1 when a is 2",
            {"toy.key": np.ones(6)},
            "toy.archdef:6:1: 'when' asks for 'a', which has a value",
        ),
        (
            "s key\nlayers\na where s\nb otherwise",
            {"toy.key": "x"},
            "toy.archdef:7:1: the text 'x' stands where",
        ),
    ],
)
def test_what_has_no_value_is_told(lines: str, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        evaluated(lines, metadata)
    assert str(error.value).startswith(message)
    assert str(error.value).endswith("(model toy.gguf)")


def test_a_key_with_millions_of_values_or_characters_is_refused_unread() -> None:
    begin = process_time()
    with pytest.raises(InputError, match=r"'toy\.key' has 100000000 values, wanted a number or one per layer"):
        evaluated("a key", {"toy.key": np.zeros(100_000_000, np.uint8)})
    assert process_time() - begin < 0.5
    with pytest.raises(InputError, match=r"'toy\.key' holds a text of 1000000 characters, wanted a number or a word"):
        evaluated("a key", {"toy.key": "x" * 1_000_000})
