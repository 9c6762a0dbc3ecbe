"""Operations that no Gemma 3 has, in compiled modules: with any number of tokens and with one, against XLA."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from ggufc.backends.caches import cache_specs
from ggufc.backends.iree.compile import compile_module
from ggufc.backends.iree.parameters import Place
from ggufc.backends.iree.runtime import IreeExecutor
from ggufc.backends.jax.module import portable_module
from ggufc.backends.jax.trace import weight_spec
from ggufc.backends.jax.xla import XlaModule
from ggufc.backends.native.target import host_target
from ggufc.graph.ir import Graph
from ggufc.graph.text import parse_graph
from ggufc.graph.verify import verify
from ggufc.passes import pipeline
from ggufc.passes.set_tokens import SetTokens

from ..native.blocks import PLAIN, block_size, random_weight

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]


class Case:
    """Graphs of one model with random weights, which lie in a file behind an odd number of bytes."""

    def __init__(self, graphs: Mapping[str, Graph], folder: Path) -> None:
        self.graphs = graphs
        rng = np.random.default_rng(0)
        self.arrays: dict[str, np.ndarray] = {}
        self.places: dict[str, Place] = {}
        contents = bytearray(b"head")
        for name, weight in next(iter(graphs.values())).weights().items():
            *rows, cols = (int(d) for d in weight.type.shape)
            blocks = random_weight(rng, weight.type.dtype, int(np.prod(rows)), cols // block_size(weight.type.dtype)[0])
            spec = weight_spec(weight)
            self.arrays[name] = blocks.view(spec.dtype).reshape(spec.shape)
            contents += bytes(-len(contents) % 32)
            self.places[name] = Place(len(contents), blocks.nbytes)
            contents += blocks.tobytes()
        self._weights, self._vmfb = folder / "weights", folder / "module.vmfb"
        self._weights.write_bytes(contents)

    def compiled(self, threads: int) -> IreeExecutor:
        """The graphs on IREE."""
        found = compile_module(portable_module(self.graphs.values()), self.places, host_target())
        self._vmfb.write_bytes(found.vmfb)
        caches = cache_specs(self.graphs)
        return IreeExecutor(self._vmfb, [self._weights], found.parameters, caches, tuple(self.graphs), threads)

    def on_xla(self, graph: Graph, ids: Ids) -> Floats:
        """The first result of a graph without caches."""
        return np.asarray(XlaModule(portable_module([graph]), self.arrays).call(graph.name, [ids])[0])


def parsed(body: str, result: str) -> Graph:
    return verify(parse_graph(f"graph @encode(%tokens: i32[T]) {{\n{body}\nreturn {result}\n}}\n"))


def random_ids(count: int, below: int = 50) -> Ids:
    return np.random.default_rng(count).integers(0, below, count).astype(np.int32)


def check(graph: Graph, counts: tuple[int, ...], folder: Path, tolerance: float = 3e-5) -> None:
    """IREE gives what XLA gives, for each number of tokens."""
    case = Case({"encode": graph}, folder)
    iree = case.compiled(threads=1)
    for count in counts:
        ids = random_ids(count)
        np.testing.assert_allclose(iree.encode(ids), case.on_xla(graph, ids), rtol=0, atol=tolerance)


ENCODER = """
  %0: f32[T, 48] = embed(%tokens, @embd: f32[50, 48])
  %1: i32[T] = positions(%tokens)
  %2: f32[T, 48] = embed(%1, @positions: f32[80, 48])
  %3: f32[T, 48] = add(%0, %2)
  %4: f32[T, 48] = add_row(%3, @kinds: f32[3, 48]) {row = 1}
  %5: f32[T, 48] = layer_norm(%4, @norm: f32[48]) {eps = 1e-5}
  %6: f32[T, 160] = linear(%5, @qkv: f32[160, 48]) {shape = [160]}
  %7: f32[T, 160] = bias(%6, @qkv_bias: f32[160])
  %8: f32[T, 4, 20] = part(%7) {start = 0, shape = [4, 20]}
  %9: f32[T, 2, 20] = part(%7) {start = 80, shape = [2, 20]}
  %10: f32[T, 2, 20] = part(%7) {start = 120, shape = [2, 20]}
  %11: f32[T, 4, 20] = rope(%8, @factors: f32[6])
    {base = 100.0, dims = 12, magnitude = 1.5, scale = 0.5, style = norm, yarn = 0}
  %12: f32[T, 2, 20] = rope(%9) {base = 100.0, dims = 20, magnitude = 1.0, scale = 1.0, style = neox, yarn = 16}
  %13: f32[T, 4, 20] = attention(%11, %12, %10) {ahead = 2, cap = 5.0, scale = 0.02, window = 4}
  %14: f32[T, 4, 20] = attention(%11, %12, %10) {ahead = 1000, cap = 0.0, scale = 0.02, window = 0}
  %15: f32[T, 4, 20] = mul(%13, %14)
  %16: f32[T, 4, 20] = gain(%15, @head_gain: f32[20])
  %17: f32[T, 4, 20] = gain(%16, @gain: f32[1])
  %18: f32[T, 4, 20] = layer_norm(%17, @head_norm: f32[20], @head_bias: f32[20]) {eps = 1e-5}
  %19: f32[T, 37] = linear(%18, @out: f32[37, 80]) {shape = [37]}
  %s: f32[T, 37] = scale(%19) {by = 0.05}
  %20: f32[T, 37] = relu(%s)
  %tanh: f32[T, 37] = tanh(%20)
  %21: f32[T, 37] = layer_norm(%tanh) {eps = 1e-5}
  %22: f32[1, 37] = pool(%21) {kind = 1}
  %23: f32[1, 37] = pool(%21) {kind = 2}
  %24: f32[1, 37] = pool(%21) {kind = 3}
  %25: f32[1, 37] = add(%22, %23)
  %26: f32[1, 37] = add(%25, %24)
"""


@pytest.mark.slow
@pytest.mark.parametrize("result", ["%21", "%26"])
def test_operations_of_encoders(result: str, tmp_path: Path) -> None:
    check(parsed(ENCODER, result), (1, 2, 9, 70), tmp_path)


@pytest.mark.slow
def test_operations_of_encoders_on_one_token(tmp_path: Path) -> None:
    check(SetTokens(1)(parsed(ENCODER, "%26")), (1,), tmp_path)


def test_a_tensor_that_kernels_and_compiled_code_read(tmp_path: Path) -> None:
    body = """
      %0: f32[T, 48] = embed(%tokens, @table: f32[50, 48])
      %1: f32[T, 48] = add_row(%0, @table: f32[50, 48]) {row = 7}
    """
    check(parsed(body, "%1"), (3,), tmp_path)


EXPERTS = """
  %0: f32[T, 256] = embed(%tokens, @embd: f32[50, 256])
  %1: f32[T, 256] = rms_norm(%0) {eps = 1e-5}
  %2: f32[T, 9] = linear(%1, @router: f32[9, 256]) {shape = [9]}
  %3: f32[T, 9] = scale(%2) {by = 0.1}
  %4: i32[T, 3] = top_k(%3) {k = 3}
  %5: f32[T, 3] = route(%3, %4) {by = 1.5, normalize = 1}
  %6: f32[T, 3] = route(%3, %4) {by = 1.0, normalize = 0}
  %7: f32[T, 3] = add(%5, %6)
  %8: f32[T, 3, 512] = expert_linear(%1, %4, @up: TYPE[9, 512, 256])
  %9: f32[T, 3, 256] = half(%8) {number = 0}
  %10: f32[T, 3, 256] = half(%8) {number = 1}
  %11: f32[T, 3, 256] = silu(%9)
  %12: f32[T, 3, 256] = mul(%11, %10)
  %13: f32[T, 3, 256] = rms_norm(%12) {eps = 1e-5}
  %14: f32[T, 3, 70] = expert_linear(%13, %4, @down: TYPE[9, 70, 256])
  %15: f32[T, 3, 70] = expert_gain(%14, %4, @gain: f32[9])
  %16: f32[T, 70] = mix(%15, %7)
  %17: f32[T, 70] = rms_norm(%16) {eps = 1e-5}
"""


@pytest.mark.slow
@pytest.mark.parametrize("type_name", ["f32", "f16", "q8_0", "q4_k", "iq1_s"])
def test_mixtures_of_experts(type_name: str, tmp_path: Path) -> None:
    """Products round activations to 15 bits, as those of other matrices do."""
    graph = parsed(EXPERTS.replace("TYPE", type_name), "%17")
    check(graph, (1, 9), tmp_path, tolerance=5e-5 if type_name in PLAIN else 5e-3)


def test_mixtures_of_experts_on_one_token(tmp_path: Path) -> None:
    check(SetTokens(1)(parsed(EXPERTS.replace("TYPE", "f32"), "%17")), (1,), tmp_path, tolerance=5e-5)


def test_states_of_convolutions_go_on_from_call_to_call(tmp_path: Path) -> None:
    """In calls shorter and longer than the state, of two layers, on two threads that could overtake each other."""
    body = """
      %0: f32[T, 64] = embed(%tokens, @embd: f32[50, 64])
      %in: f32[T, 300] = linear(%0, @in: f32[300, 64]) {shape = [300]}
      %1: f32[T, 300] = short_conv(%in, @first: f32[300, 4])
      %2: f32[T, 300] = rms_norm(%1) {eps = 1e-5}
      %3: f32[T, 300] = short_conv(%2, @second: f32[300, 3])
    """
    whole, ids = parsed(body, "%3"), random_ids(25)
    case = Case({"prefill": pipeline.prefill(whole, "f32"), "decode": pipeline.decode(whole, "f32")}, tmp_path)
    iree, wanted = case.compiled(threads=2), case.on_xla(replace(whole, name="whole"), ids)
    rows = [spec.rows for spec in iree.caches]
    assert rows == [3, 2]
    buffers: list[object] = [iree.allocate(spec, spec.rows) for spec in iree.caches]
    at = 0
    for count in (1, 1, 2, 3, 9, 1, 4, 2, 1, 1):
        entry = "prefill" if count > 1 else "decode"
        found = iree.run(entry, ids[at : at + count], at, buffers, rows)
        at += count
        np.testing.assert_allclose(found, wanted[at - 1], rtol=0, atol=3e-5)
