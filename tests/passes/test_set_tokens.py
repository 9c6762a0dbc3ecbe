"""A fixed number of tokens."""

from ggufc.passes.set_tokens import SetTokens

from .graphs import after, written


def test_the_symbol_t_becomes_the_number_everywhere() -> None:
    body = """
        %0: f32[{T}, 4] = embed(%tokens, @table: q8_0[9, 4])
        %1: f32[S, 4] = kv_update(%k.0, %0, %position)  # layer 0
        %2: f32[{T}, 4] = scale(%0) {{by = 2.0}}
        return %2, %1
        """
    signature = "%tokens: i32[{T}], %position: i32[], %k.0: f32[S, 4]"
    for count in (1, 8):
        found = after(SetTokens(count), signature.format(T="T"), body.format(T="T"))
        assert found == written(signature.format(T=count), body.format(T=count))
