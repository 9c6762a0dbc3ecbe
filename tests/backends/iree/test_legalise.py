# The bindings in iree.compiler.ir are a native module without stubs.
# pyright: reportAttributeAccessIssue=false
"""The module for IREE, read back: weights as parameters, kernels in the place of composites."""

import re

import pytest
from ggufc.backends.iree.legalise import legalise
from ggufc.backends.iree.parameters import ALIGNMENT, Place, places
from ggufc.backends.native.target import host_target
from iree.compiler import ir

from ..conftest import TinyCase


class Legal:
    """A legalised module as text, and what it maps."""

    def __init__(self, case: TinyCase, shift: int = 0) -> None:
        """`shift` moves every tensor by so many bytes, as a longer header would."""
        moved = {name: Place(place.offset + shift, place.nbytes) for name, place in places(case.model.file).items()}
        with ir.Context(), ir.Location.unknown():
            legal = legalise(case.text, moved, host_target())
            self.text = legal.module.operation.get_asm()
        self.kernels = [kernel.name for kernel in legal.kernels]
        self.parameters = legal.parameters
        self.places = moved

    def globals(self) -> list[tuple[str, str, str]]:
        """Each global as its name, its parameter's key and its type."""
        pattern = r'util\.global private @"?([^ "]+)"? = #flow\.parameter\.named<"model"::"([^"]+)"> : (\S+)'
        return re.findall(pattern, self.text)


@pytest.fixture(scope="module", params=["tiny_f32", "tiny_quantized"])
def case(request: pytest.FixtureRequest) -> TinyCase:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def legal(case: TinyCase) -> Legal:
    return Legal(case)


def test_every_tensor_is_one_global_named_after_it(case: TinyCase, legal: Legal) -> None:
    """Both entry points and the tied head read the same global."""
    names = [name for name, _, _ in legal.globals()]
    assert sorted(names) == sorted(case.model.file.tensors)
    assert all(name == key for name, key, _ in legal.globals())
    assert legal.text.count("util.global private") == len(names)
    assert sum("token_embd" in name for name in names) == 1


def test_entry_points_are_those_of_the_portable_module(case: TinyCase, legal: Legal) -> None:
    assert set(re.findall(r"func\.func public @(\w+)\(", legal.text)) == set(case.graphs)


def test_nothing_is_left_of_what_kernels_replace(legal: Legal) -> None:
    composites = set(re.findall(r'stablehlo\.composite "ggufc\.(\w+)"', legal.text))
    decompositions = set(re.findall(r"func\.func private @\"?(?:prefill|decode)\.(\w+?)\.\d+", legal.text))
    replaced = {"embed", "linear", "kv_update", "attention"}
    assert not composites & replaced
    assert not decompositions & replaced
    assert legal.text.count("flow.dispatch @") > 0


def test_every_dispatch_has_its_executable_and_every_executable_its_kernels(legal: Legal) -> None:
    called = set(re.findall(r"flow\.dispatch @(\w+)::", legal.text))
    declared = re.findall(r"stream\.executable private @(\w+)", legal.text)
    linked = set(re.findall(r'path = "(\w+)\.o"', legal.text))
    assert sorted(declared) == sorted(called)
    assert sorted(linked) == sorted(legal.kernels)


def test_weights_of_a_kernel_are_the_bytes_of_the_file(case: TinyCase, legal: Legal) -> None:
    types = {name: type_ for name, _, type_ in legal.globals()}
    for name, tensor in case.model.file.tensors.items():
        if len(tensor.shape) == 2:
            assert types[name] == f"tensor<{legal.places[name].lead + tensor.nbytes}xi8>"
        else:
            assert types[name] == f"tensor<{tensor.shape[0]}xf32>"


@pytest.mark.parametrize("shift", [0, 32])
def test_a_tensor_that_is_not_aligned_is_mapped_with_its_lead(case: TinyCase, shift: int) -> None:
    """IREE maps what begins at a multiple of 64; a GGUF aligns to 32, so a kernel skips what comes before."""
    legal = Legal(case, shift)
    leads = set()
    for name, place in legal.places.items():
        mapped = legal.parameters[name]
        assert mapped.offset + mapped.nbytes == place.offset + place.nbytes
        if len(case.model.file.tensors[name].shape) == 2:
            assert mapped.offset % ALIGNMENT == 0
            leads.add(place.offset - mapped.offset)
        else:
            assert mapped == place
    assert leads <= {0, 32}
    constants = set(re.findall(r"arith\.constant (\d+) : index", legal.text))
    assert {str(lead) for lead in leads} <= constants
