"""Operations that kernels do in one go are joined, where nobody else reads what lies between."""

from ggufc.passes.dce import EliminateDeadCode
from ggufc.passes.fuse_glu import FuseGlu
from ggufc.passes.fuse_norm_add import FuseNormAdd
from ggufc.passes.fuse_norm_linear import FuseNormLinear
from ggufc.passes.fuse_norm_rope import FuseNormRope
from ggufc.passes.pipeline import Pass

from .graphs import ROPE, after, graph, written

X = "%x: f32[T, 8]"


def fused(step: Pass, signature: str, body: str) -> str:
    """The text after the pass, and after what it made superfluous is gone."""
    return after(lambda g: EliminateDeadCode()(step(g)), signature, body)


def unchanged(step: Pass, signature: str, body: str) -> bool:
    return after(step, signature, body) == written(signature, body) and bool(graph(signature, body))


def test_a_gate_and_what_it_gates_in_either_order() -> None:
    for last in ("mul(%2, %1)", "mul(%1, %2)"):
        body = f"""
        %0: f32[T, 4] = linear(%x, @gate: q8_0[4, 8]) {{shape = [4]}}
        %1: f32[T, 4] = linear(%x, @up: q8_0[4, 8]) {{shape = [4]}}
        %2: f32[T, 4] = silu(%0)
        %3: f32[T, 4] = {last}
        return %3
        """
        expected = """
        %3: f32[T, 4] = glu(%x, @gate: q8_0[4, 8], @up: q8_0[4, 8]) {act = silu, shape = [4]}
        return %3
        """
        assert fused(FuseGlu(), X, body) == written(X, expected)


def test_a_gate_of_other_rows_type_or_reader_stays() -> None:
    pieces = {
        "another row": ("%0: f32[T, 8] = relu(%x)", "linear(%0, @up: q8_0[4, 8])", "%4"),
        "another type": ("%0: f32[T, 8] = relu(%x)", "linear(%x, @up: q4_0[4, 8])", "%4"),
        "another reader": ("%0: f32[T, 8] = relu(%x)", "linear(%x, @up: q8_0[4, 8])", "%4, %3"),
    }
    for why, (first, up, results) in pieces.items():
        body = f"""
        {first}
        %1: f32[T, 4] = linear(%x, @gate: q8_0[4, 8]) {{shape = [4]}}
        %2: f32[T, 4] = {up} {{shape = [4]}}
        %3: f32[T, 4] = gelu(%1)
        %4: f32[T, 4] = mul(%3, %2)
        return {results}
        """
        assert unchanged(FuseGlu(), X, body), why


def test_a_norm_joins_every_product_that_reads_it() -> None:
    body = """
        %0: f32[T, 8] = rms_norm(%x, @n: f32[8]) {eps = 1e-06}
        %1: f32[T, 2, 2] = linear(%0, @q: q8_0[4, 8]) {shape = [2, 2]}
        %2: f32[T, 4] = glu(%0, @g: q8_0[4, 8], @u: q8_0[4, 8]) {act = gelu, shape = [4]}
        return %1, %2
        """
    expected = """
        %1: f32[T, 2, 2] = norm_linear(%x, @n: f32[8], @q: q8_0[4, 8]) {eps = 1e-06, shape = [2, 2]}
        %2: f32[T, 4] = norm_glu(%x, @n: f32[8], @g: q8_0[4, 8], @u: q8_0[4, 8]) {act = gelu, eps = 1e-06, shape = [4]}
        return %1, %2
        """
    assert fused(FuseNormLinear(), X, body) == written(X, expected)


def test_a_norm_that_something_else_reads_stays() -> None:
    for reader, results in (("relu(%0)", "%1, %2"), ("relu(%x)", "%1, %2, %0")):
        body = f"""
        %0: f32[T, 8] = rms_norm(%x, @norm: f32[8]) {{eps = 1e-06}}
        %1: f32[T, 4] = linear(%0, @q: q8_0[4, 8]) {{shape = [4]}}
        %2: f32[T, 8] = {reader}
        return {results}
        """
        assert unchanged(FuseNormLinear(), X, body)


def test_a_norm_of_heads_does_not_join_a_product_of_rows() -> None:
    body = """
        %0: f32[T, 2, 4] = rms_norm(%x, @norm: f32[4]) {eps = 1e-06}
        %1: f32[T, 4] = linear(%0, @o: q8_0[4, 8]) {shape = [4]}
        return %1
        """
    assert unchanged(FuseNormLinear(), "%x: f32[T, 2, 4]", body)


def test_heads_are_normed_while_they_are_rotated() -> None:
    signature = "%x: f32[T, 2, 4], %position: i32[]"
    body = f"""
        %0: f32[T, 2, 4] = rms_norm(%x, @norm: f32[4]) {{eps = 1e-06}}
        %1: f32[T, 2, 4] = rope(%0, %position, @factors: f32[2]) {ROPE}
        return %1
        """
    attributes = ROPE.replace("dims = 4,", "dims = 4, eps = 1e-06,")
    expected = f"""
        %1: f32[T, 2, 4] = norm_rope(%x, %position, @norm: f32[4], @factors: f32[2]) {attributes}
        return %1
        """
    assert fused(FuseNormRope(), signature, body) == written(signature, expected)


def test_the_residual_stream_takes_a_norm_in_either_order() -> None:
    signature = "%a: f32[T, 8], %x: f32[T, 8]"
    for last in ("add(%x, %0)", "add(%0, %x)"):
        body = f"""
        %0: f32[T, 8] = rms_norm(%a, @norm: f32[8]) {{eps = 1e-06}}
        %1: f32[T, 8] = {last}
        return %1
        """
        expected = """
        %1: f32[T, 8] = norm_add(%a, %x, @norm: f32[8]) {eps = 1e-06}
        return %1
        """
        assert fused(FuseNormAdd(), signature, body) == written(signature, expected)
