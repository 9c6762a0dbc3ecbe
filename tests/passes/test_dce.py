"""Dead code."""

from ggufc.passes.dce import EliminateDeadCode

from .graphs import after, written


def test_what_nobody_reads_goes_and_what_only_it_read_goes_with_it() -> None:
    assert after(
        EliminateDeadCode(),
        "%x: f32[T, 4], %unread: f32[T, 4]",
        """
        %0: f32[T, 4] = gelu(%x)
        %1: f32[T, 4] = silu(%0)
        %2: f32[T, 4] = add(%1, %x)
        %3: f32[T, 4] = silu(%x)
        return %0, %3
        """,
    ) == written(
        "%x: f32[T, 4], %unread: f32[T, 4]",
        """
        %0: f32[T, 4] = gelu(%x)
        %3: f32[T, 4] = silu(%x)
        return %0, %3
        """,
    )
