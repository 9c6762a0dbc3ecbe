"""Caches as arguments and results."""

import pytest
from ggufc.passes.wire_kv import WireKv

from .graphs import ROPE, after, attention, written

IN = "%tokens: i32[T], %x: f32[T, 2, 4], %y: f32[T, 2, 4]"


@pytest.mark.parametrize("kv", ["f32", "f16"])
def test_keys_and_values_go_through_caches_and_everything_takes_the_position(kv: str) -> None:
    assert after(
        WireKv(kv),
        IN,
        f"""
        %0: f32[T, 2, 4] = rope(%x) {ROPE}
        %1: f32[T, 2, 4] = rope(%y, @factors: f32[2]) {ROPE}
        %2: f32[T, 2, 4] = attention(%0, %1, %y) {attention(0)}  # layer 0, global
        return %2
        """,
    ) == written(
        f"{IN}, %position: i32[], %k.0: {kv}[S, 2, 4], %v.0: {kv}[S, 2, 4]",
        f"""
        %0: f32[T, 2, 4] = rope(%x, %position) {ROPE}
        %1: f32[T, 2, 4] = rope(%y, %position, @factors: f32[2]) {ROPE}
        %3: {kv}[S, 2, 4] = kv_update(%k.0, %1, %position)  # layer 0, global
        %4: {kv}[S, 2, 4] = kv_update(%v.0, %y, %position)  # layer 0, global
        %2: f32[T, 2, 4] = attention(%0, %3, %4, %position) {attention(0)}  # layer 0, global
        return %2, %3, %4
        """,
    )


@pytest.mark.parametrize(
    ("windows", "rows"),
    [((0, 0), "S"), ((8, 8), "S8"), ((8, 16), "S16"), ((16, 8), "S16"), ((8, 0), "S"), ((0, 8), "S")],
)
def test_layers_that_share_keys_share_the_cache_with_the_widest_window(windows: tuple[int, int], rows: str) -> None:
    first, second = map(attention, windows)
    assert after(
        WireKv(),
        IN,
        f"""
        %0: f32[T, 2, 4] = attention(%x, %x, %y) {first}
        %1: f32[T, 2, 4] = attention(%0, %x, %y) {second}
        return %1
        """,
    ) == written(
        f"{IN}, %position: i32[], %k.0: f32[{rows}, 2, 4], %v.0: f32[{rows}, 2, 4]",
        f"""
        %2: f32[{rows}, 2, 4] = kv_update(%k.0, %x, %position)
        %3: f32[{rows}, 2, 4] = kv_update(%v.0, %y, %position)
        %0: f32[T, 2, 4] = attention(%x, %2, %3, %position) {first}
        %1: f32[T, 2, 4] = attention(%0, %2, %3, %position) {second}
        return %1, %2, %3
        """,
    )


def test_layers_with_keys_of_their_own_have_caches_of_their_own() -> None:
    found = after(
        WireKv(),
        IN,
        f"""
        %0: f32[T, 2, 4] = attention(%x, %x, %y) {attention(8)}
        %1: f32[T, 2, 4] = attention(%0, %0, %y) {attention(0)}
        return %1
        """,
    )
    own = "%k.0: f32[S8, 2, 4], %v.0: f32[S8, 2, 4], %k.1: f32[S, 2, 4], %v.1: f32[S, 2, 4]"
    assert found.startswith(f"({IN}, %position: i32[], {own}) {{")
    assert found.endswith("return %1, %2, %3, %4, %5\n")


def test_a_convolution_goes_on_from_a_state_of_fixed_size() -> None:
    """Three taps see two rows back; the state is those rows, renewed by every call, in float32 whatever caches are."""
    assert after(
        WireKv("f16"),
        "%tokens: i32[T], %x: f32[T, 4]",
        """
        %0: f32[T, 4] = short_conv(%x, @kernel: f32[4, 3])  # layer 0
        %1: f32[T, 4] = short_conv(%0, @other: f32[4, 2])  # layer 1
        return %1
        """,
    ) == written(
        "%tokens: i32[T], %x: f32[T, 4], %position: i32[], %c.0: f32[2, 4], %c.1: f32[1, 4]",
        """
        %0: f32[T, 4] = short_conv(%x, %c.0, @kernel: f32[4, 3])  # layer 0
        %2: f32[2, 4] = conv_update(%c.0, %x)  # layer 0
        %1: f32[T, 4] = short_conv(%0, %c.1, @other: f32[4, 2])  # layer 1
        %3: f32[1, 4] = conv_update(%c.1, %0)  # layer 1
        return %1, %2, %3
        """,
    )
