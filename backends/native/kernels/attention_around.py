"""Attention that also sees later tokens, as encoders have it: no cache, all keys at hand."""

from __future__ import annotations

from ..emit import I32, Emitter
from ..kernel import Arguments, Kernel, Scalar
from .attention import attention_one


def attention_around(head_dim: int, value_dim: int) -> Kernel:
    """Attention of every token t to the keys from t - window + 1 (0 where `window` is 0) to t + ahead.

    q: float32 (tokens, heads, head_dim); k, v: float32 (tokens, kv_heads, head_dim or value_dim); position: int32
    (1,), unread; out: float32 (tokens, heads, value_dim); `ahead` is not negative. The rest is as in `attention_one`,
    which sees the same keys from the position of the last of them.
    """
    one = attention_one("f32", head_dim, value_dim)

    def emit(e: Emitter, a: Arguments) -> None:
        token, tokens, window = a["@tokens"], a["tokens"], a["window"]
        last = e.minimum(e.add(token, a["ahead"]), e.sub(tokens, e.index(1)))
        has_window = e.icmp_signed(">", window, e.index(0))
        first = e.select(has_window, e.maximum(e.sub(e.add(token, e.index(1)), window), 0), e.index(0))
        position, row = e.scratch(4), e.mul(token, a["heads"])
        e.write(e.trunc(last, I32), position)
        seen = {
            "q": e.at(a["q"], e.times(row, 4 * head_dim)),
            "out": e.at(a["out"], e.times(row, 4 * value_dim)),
            "position": position,
            "rows": tokens,
            "window": e.add(e.sub(last, first), e.index(1)),
        }
        one.emit(e, {**a, **seen})

    return Kernel(
        f"ggufc_attention_around_{head_dim}_{value_dim}",
        one.buffers,
        (Scalar("tokens"), *one.scalars, Scalar("ahead")),
        (("heads", 1), ("tokens", 1)),
        emit,
    )
