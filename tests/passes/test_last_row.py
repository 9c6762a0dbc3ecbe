"""Only the last position's logits."""

from ggufc.passes.last_row import LastRow

from .graphs import ROPE, after, attention, written


def test_what_serves_only_the_last_row_is_done_for_it_alone() -> None:
    """The keys of all rows are cached, so %0 stays whole; the head is narrow."""
    assert after(
        LastRow(),
        "%tokens: i32[T], %position: i32[], %k.0: f32[S, 4]",
        """
        %0: f32[T, 4] = embed(%tokens, @table: f32[9, 4])
        %1: f32[T, 4] = gelu(%0)
        %2: f32[S, 4] = kv_update(%k.0, %1, %position)
        %3: f32[T, 4] = silu(%0)
        %4: f32[T, 4] = add(%3, %1)
        %5: f32[T, 9] = linear(%4, @head: f32[9, 4]) {shape = [9]}
        return %5, %2
        """,
    ) == written(
        "%tokens: i32[T], %position: i32[], %k.0: f32[S, 4]",
        """
        %0: f32[T, 4] = embed(%tokens, @table: f32[9, 4])
        %1: f32[T, 4] = gelu(%0)
        %2: f32[S, 4] = kv_update(%k.0, %1, %position)
        %6: f32[1, 4] = last_row(%0)
        %3: f32[1, 4] = silu(%6)
        %7: f32[1, 4] = last_row(%1)
        %4: f32[1, 4] = add(%3, %7)
        %5: f32[1, 9] = linear(%4, @head: f32[9, 4]) {shape = [9]}
        return %5, %2
        """,
    )


def test_attention_looks_at_other_rows_and_stays_whole() -> None:
    """A rope or an attention of the last row alone would stand at position 0, so they are cut behind."""
    assert after(
        LastRow(),
        "%q: f32[T, 2, 4], %k: f32[T, 1, 4], %v: f32[T, 1, 4]",
        f"""
        %0: f32[T, 2, 4] = rope(%q) {ROPE}
        %1: f32[T, 2, 4] = attention(%0, %k, %v) {attention(0)}
        return %1
        """,
    ) == written(
        "%q: f32[T, 2, 4], %k: f32[T, 1, 4], %v: f32[T, 1, 4]",
        f"""
        %0: f32[T, 2, 4] = rope(%q) {ROPE}
        %1: f32[T, 2, 4] = attention(%0, %k, %v) {attention(0)}
        %2: f32[1, 2, 4] = last_row(%1)
        return %2
        """,
    )


def test_choices_of_experts_stay_whole() -> None:
    """A row is cut out of floats alone; numbers of experts belong to all rows."""
    body = """
        %0: f32[T, 4] = embed(%tokens, @table: f32[9, 4])
        %1: i32[T, 2] = top_k(%0) {k = 2}
        %2: f32[T, 2] = route(%0, %1) {by = 1.0, normalize = 1}
    """
    assert after(LastRow(), "%tokens: i32[T]", body + "return %2") == written(
        "%tokens: i32[T]", body + "%3: f32[1, 2] = last_row(%2)\nreturn %3"
    )
