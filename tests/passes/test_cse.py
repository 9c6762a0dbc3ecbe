"""Common subexpressions."""

from ggufc.passes.cse import EliminateCommonSubexpressions

from .graphs import after, written


def test_the_same_twice_is_computed_once_and_what_reads_it_too() -> None:
    assert after(
        EliminateCommonSubexpressions(),
        "%x: f32[T, 4]",
        """
        %0: f32[T, 4] = gelu(%x)
        %1: f32[T, 4] = gelu(%x)
        %2: f32[T, 4] = silu(%0)
        %3: f32[T, 4] = silu(%1)
        %4: f32[T, 4] = add(%2, %3)
        return %4, %3
        """,
    ) == written(
        "%x: f32[T, 4]",
        """
        %0: f32[T, 4] = gelu(%x)
        %2: f32[T, 4] = silu(%0)
        %4: f32[T, 4] = add(%2, %2)
        return %4, %2
        """,
    )


def test_other_weights_attributes_or_order_are_another_thing() -> None:
    body = """
        %0: f32[T, 4] = scale(%x) {by = 2.0}
        %1: f32[T, 4] = scale(%x) {by = 3.0}
        %2: f32[T, 4] = linear(%x, @a: f32[4, 4]) {shape = [4]}
        %3: f32[T, 4] = linear(%x, @b: f32[4, 4]) {shape = [4]}
        %4: f32[T, 2, 2] = linear(%x, @a: f32[4, 4]) {shape = [2, 2]}
        %5: f32[T, 4] = mul(%0, %1)
        %6: f32[T, 4] = mul(%1, %0)
        return %2, %3, %4, %5, %6
        """
    assert after(EliminateCommonSubexpressions(), "%x: f32[T, 4]", body) == written("%x: f32[T, 4]", body)
