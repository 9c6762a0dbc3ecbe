"""Rows of a weight as exact float32: the token embedding, and the dequantizer of the exact mode."""

from __future__ import annotations

from ..emit import F32, I32, I64, Emitter, Value, vec
from ..kernel import Arguments, Buffer, Kernel, Scalar
from .plain import PlainType
from .quant import QuantType
from .types import TYPES

_TOKENS_PER_GROUP = 8


def embed(type_name: str) -> Kernel:
    """Dequantized rows, bit for bit what GGML's reference gives.

    ids: int32 (tokens,), held to [0, rows); w: the raw rows of the weight; y: float32 (tokens, cols).
    """
    kind = TYPES[type_name]
    row = _plain_row(kind) if isinstance(kind, PlainType) else _quantized_row(kind)

    def emit(e: Emitter, a: Arguments) -> None:
        cols = a["cols"]
        write_row = row(e, cols)
        first = e.times(a["@tokens"], _TOKENS_PER_GROUP)

        def token(t: Value) -> None:
            wanted = e.sext(e.read(I32, a["ids"], e.times(t, 4)), I64)
            line = e.maximum(e.minimum(wanted, e.sub(a["rows"], e.index(1))), 0)
            write_row(a["w"], line, e.at(a["y"], e.times(e.mul(t, cols), 4)))

        e.each(first, e.minimum(e.add(first, e.index(_TOKENS_PER_GROUP)), a["tokens"]), 1, token)

    return Kernel(
        f"ggufc_embed_{type_name}",
        (Buffer("ids", "i32"), Buffer("w", "i8"), Buffer("y", "f32", output=True)),
        (Scalar("tokens"), Scalar("rows"), Scalar("cols")),
        (("tokens", _TOKENS_PER_GROUP),),
        emit,
    )


def _plain_row(kind: PlainType):
    def prepare(e: Emitter, cols: Value):
        def write(w: Value, line: Value, y: Value) -> None:
            source = e.at(w, e.mul(line, kind.row_bytes(e, cols)))
            e.each(0, cols, 1, lambda i: e.write(kind.read(e, e.at(source, kind.row_bytes(e, i))), y, e.times(i, 4)))

        return write

    return prepare


def _quantized_row(kind: QuantType):
    def prepare(e: Emitter, cols: Value):
        scratch, partial = kind.zero_scratch(e), e.scratch(4 * kind.chunk)
        stride = kind.row_bytes(e, cols)

        def write(w: Value, line: Value, y: Value) -> None:
            source = e.at(w, e.mul(line, stride))
            factors = kind.row_factors(e, source)

            def chunk(c: Value) -> None:
                left = e.sub(cols, c)
                address = kind.padded(e, e.at(source, kind.column_at(e, c)), e.over(left, kind.block), scratch)
                is_whole = e.icmp_signed(">=", left, e.index(kind.chunk))
                wanted = e.at(y, e.times(c, 4))
                into = e.select(is_whole, wanted, partial)
                unpacked = kind.unpack(e, address, factors)
                scales = kind.scales(e, unpacked)
                for start, lane, values in kind.runs(e, unpacked):
                    count = values.type.count
                    result = e.fmul(e.take(scales, [lane] * count), e.sitofp(values, vec(F32, count)))
                    minimum = kind.minimum_lane(start)
                    if minimum is not None:
                        result = e.fsub(result, e.take(scales, [minimum] * count))
                    e.write(result, into, 4 * start)

                def copy(i: Value) -> None:
                    at = e.times(i, 4)
                    e.write(e.read(vec(F32, kind.block), partial, at), wanted, at)

                e.each(0, e.select(is_whole, e.index(0), left), kind.block, copy)

            e.each(0, cols, kind.chunk, chunk)

        return write

    return prepare
