"""Attention over a ring of keys and values, with the softmax taken on the way (Milakov and Gimelshein, 2018).

A work group has some *rows*, pairs of a token and a query head of one kv head: in decode the heads of one token, in
prefill the tokens of one head. It goes through the keys that its rows see in blocks of BLOCK positions: scores of all
rows, weights relative to the largest score so far, weighted sum of values. The sums over blocks live in the output.

What a row gets does not depend on the rows beside it, on the number of tokens or on which of the kernels is used, not
even in the last bit: blocks begin at multiples of BLOCK, a score always adds up in the same order, values in the order
of the keys. A key that a row does not see is never multiplied into its result. Where a token has too few kv heads to
share among the cores, `attention_spans` and `attention_merge` share its keys, at the price of another order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from ..emit import F32, I8, I16, I32, I64, Emitter, Index, Value, const, vec
from ..kernel import ELEMENTS, Arguments, Buffer, Kernel, Scalar
from . import math
from .elementwise import each_lane, like
from .kv_update import BLOCK as CACHE_BLOCK
from .kv_update import BLOCK_BYTES

BLOCK = 64
"""Keys between two looks at the largest score."""
TOKENS = 16
"""Tokens of a work group in prefill: the later ones see more, so there must be many for workers to be through at one
time."""

_PADDING = 16
_LINE = 4 * (BLOCK + _PADDING)
"""Bytes of a row's scores; a tile of keys may write past the block."""
_LOWEST = -3e38
_MOST_HEADS = 8  # one register of running sums each, on every target
_WORK_GROUPS = 8  # enough for the cores of most machines that wait for one token
_BUFFERS = ("q", "k", "v", "position", "out")
_SCALARS = (
    *(Scalar(name) for name in ("rows", "heads", "kv_heads", "window")),
    *(Scalar(name, "f32") for name in ("scale", "cap")),
)


def attention_one(dtype: str, head_dim: int, value_dim: int, heads_per_group: int = 1) -> Kernel:
    """Attention of one token (decode).

    q: float32 (heads, head_dim); k, v: `dtype` ("f32", "f16" or "q8_0") (rows, kv_heads, head_dim) and (rows, kv_heads,
    value_dim); position: int32 (1,), the token's; out: float32 (heads, value_dim). Ring row s holds the latest position
    p <= position with p mod rows = s. `window` is 0 for all earlier positions, or the number of positions seen with the
    token's own; scores are `scale` q . k, held by `cap` tanh(score / `cap`) unless it is 0. A work group does
    `heads_per_group` heads, which divides heads / kv_heads: they share reads of the ring.
    """
    assert 1 <= heads_per_group <= _MOST_HEADS, heads_per_group
    shape = _Shape(dtype, head_dim, value_dim)

    def emit(e: Emitter, a: Arguments) -> None:
        head = e.times(a["@heads"], heads_per_group)
        rows = _Rows(heads_per_group, e.index(heads_per_group), (heads_per_group,), 0, e.index(1))
        _Group(e, a, shape, rows, e.index(0), head).emit()

    name = f"ggufc_attention_one_{shape.name}_{heads_per_group}"
    return Kernel(name, shape.buffers, _SCALARS, (("heads", heads_per_group),), emit)


def shared_heads(heads: int, kv_heads: int, spans: int = 1) -> int:
    """The `heads_per_group` to choose: as many heads of a kv head as registers hold, but two work groups at least where
    that can be."""
    share = heads // kv_heads
    fits = (n for n in range(1, min(share, _MOST_HEADS) + 1) if share % n == 0)
    return max(n for n in fits if n == 1 or spans * heads // n > 1)


def spans_of_keys(heads: int, kv_heads: int) -> int:
    """Into how many spans to cut the keys of a token, so that there are some eight work groups; 1 where heads do."""
    return max(1, _WORK_GROUPS // (heads // shared_heads(heads, kv_heads, _WORK_GROUPS)))


def attention_spans(dtype: str, head_dim: int, value_dim: int, heads_per_group: int) -> Kernel:
    """Attention of one token, each of `spans` equal parts of the keys for itself.

    part: float32 (spans, heads, value_dim + 2): sums of values weighted by exp(score - largest), then the largest score
    of the span and the sum of weights; the rest is as in `attention_one`. A work group does a span of the keys for
    `heads_per_group` heads.
    """
    shape = _Shape(dtype, head_dim, value_dim)
    buffers = (*shape.buffers[:-1], Buffer("part", "f32", output=True))

    def emit(e: Emitter, a: Arguments) -> None:
        head = e.times(a["@heads"], heads_per_group)
        rows = _Rows(heads_per_group, e.index(heads_per_group), (heads_per_group,), 0, e.index(1))
        first = e.times(e.mul(a["@spans"], a["heads"]), 4 * (value_dim + 2))
        _Group(e, {**a, "out": e.at(a["part"], first)}, shape, rows, e.index(0), head, a["@spans"], a["spans"]).emit()

    name = f"ggufc_attention_spans_{shape.name}_{heads_per_group}"
    return Kernel(name, buffers, (*_SCALARS, Scalar("spans")), (("heads", heads_per_group), ("spans", 1)), emit)


def attention_merge() -> Kernel:
    """The result of one token from what `attention_spans` gives.

    part: float32 (spans, heads, value_dim + 2); out: float32 (heads, value_dim). A work group does one head.
    """

    def emit(e: Emitter, a: Arguments) -> None:
        head, spans, size = a["@heads"], a["spans"], a["value_dim"]
        line = e.times(e.add(size, e.index(2)), 4)
        first, stride = e.at(a["part"], e.mul(head, line)), e.mul(a["heads"], line)
        end = e.times(size, 4)

        def at(span: Value) -> Value:
            return e.at(first, e.mul(span, stride))

        def larger(span: Value, most: Value) -> list[Value]:
            value = e.read(F32, e.at(at(span), end))
            return [e.select(e.fcmp_ordered(">", value, most), value, most)]

        (most,) = e.loop(0, spans, 1, [const(F32, _LOWEST)], larger)

        def weight(span: Value) -> Value:
            return math.exp(e, e.fsub(e.read(F32, e.at(at(span), end)), most))

        def add(span: Value, total: Value) -> list[Value]:
            return [e.fma_(weight(span), e.read(F32, e.at(at(span), end), 4), total)]

        (total,) = e.loop(0, spans, 1, [const(F32, 0.0)], add)
        factor = e.fdiv(const(F32, 1.0), total)
        out = e.at(a["out"], e.mul(head, end))

        def column(kind: ir.Type, i: Value) -> None:
            offset = e.times(i, 4)

            def add(span: Value, sums: Value) -> list[Value]:
                return [e.fma_(like(e, weight(span), kind), e.read(kind, at(span), offset), sums)]

            (sums,) = e.loop(0, spans, 1, [const(kind, 0.0)], add)
            e.write(e.fmul(sums, like(e, factor, kind)), out, offset)

        each_lane(e, size, column)

    return Kernel(
        "ggufc_attention_merge",
        (Buffer("part", "f32"), Buffer("out", "f32", output=True)),
        (Scalar("heads"), Scalar("spans"), Scalar("value_dim")),
        (("heads", 1),),
        emit,
    )


def attention_many(dtype: str, head_dim: int, value_dim: int) -> Kernel:
    """Attention of any number of tokens (prefill).

    q: float32 (tokens, heads, head_dim), row t of it at `position + t`; out: float32 (tokens, heads, value_dim); ring
    row s holds the latest position p < position + tokens with p mod rows = s, and all that is seen is there. Each
    token also sees up to `ahead` of the tokens after it. The rest is as in `attention_one`.
    """
    shape = _Shape(dtype, head_dim, value_dim)

    def emit(e: Emitter, a: Arguments) -> None:
        token = e.times(a["@tokens"], TOKENS)
        count = e.minimum(e.sub(a["tokens"], token), TOKENS)
        _Group(e, a, shape, _Rows(TOKENS, count, (4, 1), 1, a["heads"]), token, a["@heads"]).emit()

    return Kernel(
        f"ggufc_attention_many_{shape.name}",
        shape.buffers,
        (Scalar("tokens"), *_SCALARS, Scalar("ahead")),
        (("heads", 1), ("tokens", TOKENS)),
        emit,
    )


@dataclass(frozen=True)
class _Shape:
    dtype: str
    head_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        assert self.dtype in ("f32", "f16", "q8_0"), self

    @property
    def name(self) -> str:
        return f"{self.dtype}_{self.head_dim}_{self.value_dim}"

    def nbytes(self, elements: int) -> int:
        """Bytes of so many elements of the ring that begin a head."""
        return elements // CACHE_BLOCK * BLOCK_BYTES if self.dtype == "q8_0" else elements * ELEMENTS[self.dtype][1]

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        types = ("f32", self.dtype, self.dtype, "i32", "f32")
        return tuple(Buffer(n, t, output=n == "out") for n, t in zip(_BUFFERS, types, strict=True))


@dataclass(frozen=True)
class _Rows:
    """The rows of a work group.

    At most `most`, `count` in this call, taken in register tiles of these sizes. From one row to the next are `step`
    positions and `stride` heads of q and out.
    """

    most: int
    count: Value
    tiles: tuple[int, ...]
    step: int
    stride: Value


class _Group:
    """Emits a work group; with `span`, one that does this one of so many spans of the keys and leaves the rest open."""

    def __init__(
        self,
        e: Emitter,
        a: Arguments,
        shape: _Shape,
        rows: _Rows,
        token: Value,
        head: Value,
        span: Value | None = None,
        spans: Value | None = None,
    ) -> None:
        self.e, self.shape, self.rows, self.span, self.spans = e, shape, rows, span, spans
        self.lanes = e.target.vector_bits // 32
        self.sums = 16 if e.target.vector_registers == 32 else 8  # registers of running sums in a tile
        self.ring, self.window, self.scale, self.cap = a["rows"], a["window"], a["scale"], a["cap"]
        first = e.sext(e.read(I32, a["position"]), I64)
        self.position = e.add(first, token)  # of row 0
        # where the keys end, and how many later ones are seen; a token alone is the last
        self.length, self.ahead = (e.add(first, a["tokens"]), a["ahead"]) if rows.step else (None, None)
        row = e.add(e.mul(token, a["heads"]), head)
        kv_head = e.udiv(head, e.udiv(a["heads"], a["kv_heads"]))
        self.q, self.q_stride = self._part(a["q"], row, rows.stride, 4 * shape.head_dim)
        out_size = 4 * shape.value_dim + (0 if span is None else 8)
        self.out, self.out_stride = self._part(a["out"], row, rows.stride, out_size)
        self.k, self.k_stride = self._part(a["k"], kv_head, a["kv_heads"], shape.nbytes(shape.head_dim))
        self.v, self.v_stride = self._part(a["v"], kv_head, a["kv_heads"], shape.nbytes(shape.value_dim))
        self.scores = e.scratch(_LINE * rows.most)
        self.largest, self.total, self.factor = (e.scratch(4 * rows.most) for _ in range(3))
        # Prefill shares what it reads among keys, too; in decode prefetchers follow one row of the ring at a time best.
        self.keys = min(4, self.sums // rows.tiles[0]) if rows.step else 1
        self.width = self.lanes * (self.sums // rows.tiles[0])  # columns of values in a tile
        self.partial = e.scratch(4 * self.width * rows.tiles[0])

    def _part(self, address: Value, index: Value, stride: Value, size: int) -> tuple[Value, Value]:
        """The address of head `index`, and the bytes between rows that are `stride` heads apart."""
        return self.e.at(address, self.e.times(index, size)), self.e.times(stride, size)

    def emit(self) -> None:
        e, count = self.e, self.rows.count
        e.each(0, count, 1, self._begin)
        first = e.times(e.over(self._first(e.index(0)), BLOCK), BLOCK)
        end = self._end(e.sub(count, e.index(1)))
        if self.span is not None:
            blocks = e.over(e.add(e.sub(end, first), e.index(BLOCK - 1)), BLOCK)
            size = e.times(e.udiv(e.add(blocks, e.sub(self.spans, e.index(1))), self.spans), BLOCK)
            first = e.add(first, e.mul(self.span, size))
            end = e.minimum(end, e.add(first, size))
        e.each(first, end, BLOCK, self._block)
        e.each(0, count, 1, self._finish if self.span is None else self._leave_open)

    # What a row sees: the positions [first, end)

    def _own(self, row: Value) -> Value:
        """The position after the row's own."""
        e = self.e
        return e.add(self.position, e.add(e.times(row, self.rows.step), e.index(1)))

    def _end(self, row: Value) -> Value:
        e, end = self.e, self._own(row)
        return end if self.length is None else e.minimum(e.add(end, self.ahead), self.length)

    def _first(self, row: Value) -> Value:
        e = self.e
        has_window = e.icmp_signed(">", self.window, e.index(0))
        return e.select(has_window, e.maximum(e.sub(self._own(row), self.window), 0), e.index(0))

    # Steps

    def _begin(self, row: Value) -> None:
        e = self.e
        e.write(const(F32, _LOWEST), self.largest, e.times(row, 4))
        e.write(const(F32, 0.0), self.total, e.times(row, 4))
        self._change(row, lambda old: const(old.type, 0.0))

    def _finish(self, row: Value) -> None:
        e = self.e
        factor = e.fdiv(const(F32, 1.0), e.read(F32, self.total, e.times(row, 4)))
        self._change(row, lambda total: e.fmul(total, e.splat(factor, total.type.count)))

    def _leave_open(self, row: Value) -> None:
        e = self.e
        for n, table in enumerate((self.largest, self.total)):
            e.write(e.read(F32, table, e.times(row, 4)), self._output(row), 4 * (self.shape.value_dim + n))

    def _block(self, block: Value) -> None:
        e = self.e
        end = e.add(block, e.index(BLOCK))
        self._for_rows(lambda row, size: self._score(row, size, block, end))
        e.each(0, self.rows.count, 1, lambda row: self._soften(row, block))
        whole = self.shape.value_dim // self.width * self.width
        e.each(0, whole, self.width, lambda column: self._weigh(column, self.width, block, end))
        if whole < self.shape.value_dim:
            self._weigh(e.index(whole), self.shape.value_dim - whole, block, end)

    def _score(self, row: Value, size: int, block: Value, block_end: Value) -> None:
        """q . k of `size` rows and all keys of the block that one of them sees."""
        e = self.e
        keys = self.keys
        start = e.maximum(self._first(row), block)
        end = e.minimum(self._end(e.add(row, e.index(size - 1))), block_end)
        base, last = e.urem(start, self.ring), e.sub(end, e.index(1))
        queries = [e.at(self.q, e.mul(e.add(row, e.index(i)), self.q_stride)) for i in range(size)]
        zero = const(vec(F32, self.lanes), 0.0)

        def tile(key: Value) -> None:
            lines = []
            for i in range(keys):
                at = e.minimum(e.add(key, e.index(i)), last)  # past the end repeats the last key
                at = e.add(e.sub(at, start), base)
                at = e.select(e.icmp_signed(">=", at, self.ring), e.sub(at, self.ring), at)
                lines.append(e.at(self.k, e.mul(at, self.k_stride)))
                if not self.rows.step:  # values are read in narrow columns, which prefetchers do not follow
                    value = e.at(self.v, e.mul(at, self.v_stride))
                    e.prefetch(value, 0, self.shape.nbytes(self.shape.value_dim))

            def add(column: Value, *sums: Value, lanes: int = self.lanes) -> list[Value]:
                k = [self._widen(self._read_ring(line, column, lanes)) for line in lines]
                q = [self._widen(e.read(vec(F32, lanes), query, e.times(column, 4))) for query in queries]
                pairs = [(a, b) for a in q for b in k]
                return [e.fma_(a, b, total) for (a, b), total in zip(pairs, sums, strict=True)]

            whole = self.shape.head_dim // self.lanes * self.lanes
            sums = e.loop(0, whole, self.lanes, [zero] * (size * keys), add)
            if whole < self.shape.head_dim:
                sums = add(e.index(whole), *sums, lanes=self.shape.head_dim - whole)
            together = max(1, self.lanes // keys)  # rows that one fold serves
            for first in range(0, size, together):
                group = range(first, min(first + together, size))
                folded = self._fold([sums[i * keys + j] for i in group for j in range(keys)])
                for i in group:
                    part = e.take(folded, range((i - first) * keys, (i - first + 1) * keys))
                    e.write(part, self._line(e.add(row, e.index(i))), e.times(e.sub(key, block), 4))

        e.each(start, end, keys, tile)

    def _soften(self, row: Value, block: Value) -> None:
        """Scores to weights; the sums so far are scaled to the new largest score."""
        e, kind, lanes = self.e, vec(F32, self.lanes), self.lanes
        line = self._line(row)
        is_capped = e.fcmp_ordered("!=", self.cap, const(F32, 0.0))
        with e.if_then(is_capped):
            into, back = e.splat(e.fdiv(self.scale, self.cap), lanes), e.splat(self.cap, lanes)

            def cap(i: Value) -> None:
                at = e.times(i, 4)
                e.write(e.fmul(math.tanh(e, e.fmul(e.read(kind, line, at), into)), back), line, at)

            e.each(0, BLOCK, lanes, cap)
        scale = e.splat(e.select(is_capped, const(F32, 1.0), self.scale), lanes)
        first, end = (e.splat(e.sub(f(row), block), lanes) for f in (self._first, self._end))
        numbers = vec(I64, lanes)
        before = e.read(F32, self.largest, e.times(row, 4))
        masks, scores, most = [], [], e.splat(before, lanes)
        for i in range(0, BLOCK, lanes):
            at = const(numbers, tuple(range(i, i + lanes)))
            masks.append(e.and_(e.icmp_signed(">=", at, first), e.icmp_signed("<", at, end)))
            scores.append(e.fmul(e.read(kind, line, 4 * i), scale))
            score = e.select(masks[-1], scores[-1], const(kind, _LOWEST))
            most = e.select(e.fcmp_ordered(">", most, score), most, score)
        largest = e.extract_element(self._fold([most], self._larger), const(I32, 0))
        e.write(largest, self.largest, e.times(row, 4))
        total = const(kind, 0.0)
        for i, (mask, score) in enumerate(zip(masks, scores, strict=True)):
            weight = e.select(mask, math.exp(e, e.fsub(score, e.splat(largest, lanes))), const(kind, 0.0))
            e.write(weight, line, 4 * i * lanes)
            total = e.fadd(total, weight)
        factor = math.exp(e, e.fsub(before, largest))
        e.write(factor, self.factor, e.times(row, 4))
        sum_of_block = e.extract_element(self._fold([total]), const(I32, 0))
        old = e.read(F32, self.total, e.times(row, 4))
        e.write(e.fma_(old, factor, sum_of_block), self.total, e.times(row, 4))

    def _weigh(self, column: Value, width: int, block: Value, block_end: Value) -> None:
        """Adds weighted values to `width` columns of all rows. Only keys that a row sees are multiplied into it."""
        e = self.e
        parts = [(at, min(self.lanes, width - at)) for at in range(0, width, self.lanes)]

        def tile(row: Value, size: int) -> None:
            for i in range(size):
                for at, n in parts:
                    e.write(const(vec(F32, n), -0.0), self._partial(i), 4 * at)  # x + -0.0 is x, whatever x is
            if size == 1 or self.rows.step == 0:
                add(row, 0, size, self._first(row), self._end(row))
            else:
                # All rows see [begin, end); before and after it each has keys of its own.
                begin = self._first(e.add(row, e.index(size - 1)))
                end = e.maximum(begin, self._end(row))
                e.each(0, size, 1, lambda i: own(row, i, e.index(0), begin))
                add(row, 0, size, begin, end)
                e.each(0, size, 1, lambda i: own(row, i, end, block_end))
            for i in range(size):
                factor = e.read(F32, self.factor, e.times(e.add(row, e.index(i)), 4))
                out = e.at(self._output(e.add(row, e.index(i))), e.times(column, 4))
                for at, n in parts:
                    kind = vec(F32, n)
                    old, new = e.read(kind, out, 4 * at), e.read(kind, self._partial(i), 4 * at)
                    e.write(e.fma_(old, e.splat(factor, n), new), out, 4 * at)

        def own(row: Value, i: Value, begin: Value, end: Value) -> None:
            row = e.add(row, i)
            add(row, i, 1, e.maximum(begin, self._first(row)), e.minimum(end, self._end(row)))

        def add(row: Value, i: Index, size: int, first: Value, end: Value) -> None:
            start, end = e.maximum(first, block), e.minimum(end, block_end)
            with e.if_then(e.icmp_signed("<", start, end)):
                self._add_values(row, i, size, column, parts, block, start, end)

        self._for_rows(tile)

    def _add_values(
        self,
        row: Value,
        i: Index,
        size: int,
        column: Value,
        parts: Sequence[tuple[int, int]],
        block: Value,
        start: Value,
        end: Value,
    ) -> None:
        """partial[i + n] += weights of row + n times the values of the keys [start, end), for n < size."""
        e = self.e
        lines = [e.at(self._line(e.add(row, e.index(n))), e.times(e.sub(start, block), 4)) for n in range(size)]
        partials = [e.at(self._partial(i), 4 * self.width * n) for n in range(size)]
        v, ring_end = self.v, e.at(self.v, e.mul(self.ring, self.v_stride))

        def key(k: Value, address: Value, *sums: Value) -> list[Value]:
            values = [self._read_ring(address, e.add(column, e.index(at)), n) for at, n in parts]
            weights = [e.read(F32, line, e.times(k, 4)) for line in lines]
            pairs = [(w, value) for w in weights for value in values]
            new = [e.fma_(e.splat(w, x.type.count), x, total) for (w, x), total in zip(pairs, sums, strict=True)]
            following = e.at(address, self.v_stride)
            return [e.select(e.icmp_unsigned("==", following, ring_end), v, following), *new]

        address = e.at(v, e.mul(e.urem(start, self.ring), self.v_stride))
        places = [(partial, 4 * at, n) for partial in partials for at, n in parts]
        before = [e.read(vec(F32, n), partial, at) for partial, at, n in places]
        _, *sums = e.loop(0, e.sub(end, start), 1, [address, *before], key)
        for (partial, at, _), total in zip(places, sums, strict=True):
            e.write(total, partial, at)

    # Parts

    def _for_rows(self, tile: Callable[[Value, int], None]) -> None:
        """Covers all rows with register tiles: tile(first row, number of rows)."""
        e, done = self.e, self.e.index(0)
        for size in self.rows.tiles:
            end = e.add(done, e.times(e.over(e.sub(self.rows.count, done), size), size))
            e.each(done, end, size, lambda row, size=size: tile(row, size))
            done = end

    def _line(self, row: Value) -> Value:
        return self.e.at(self.scores, self.e.times(row, _LINE))

    def _partial(self, i: Index) -> Value:
        return self.e.at(self.partial, self.e.times(self.e.index(i), 4 * self.width))

    def _output(self, row: Value) -> Value:
        return self.e.at(self.out, self.e.mul(row, self.out_stride))

    def _change(self, row: Value, change: Callable[[Value], Value]) -> None:
        """out = change(out) for a row of the output."""
        e, out = self.e, self._output(row)

        def columns(i: Value, count: int = 8) -> None:
            e.write(change(e.read(vec(F32, count), out, e.times(i, 4))), out, e.times(i, 4))

        rest = self.shape.value_dim % 8
        e.each(0, self.shape.value_dim - rest, 8, columns)
        if rest:
            columns(e.index(self.shape.value_dim - rest), rest)

    def _read_ring(self, address: Value, column: Index, lanes: int) -> Value:
        """Elements of a head of k or v, from its beginning at `address`, as float32."""
        e, column = self.e, self.e.index(column)
        if self.shape.dtype == "q8_0":
            block = e.at(address, e.times(e.over(column, CACHE_BLOCK), BLOCK_BYTES))
            scale = e.half_to_float(e.read(I16, block))
            integers = e.read(vec(I8, lanes), e.at(block, e.and_(column, e.index(CACHE_BLOCK - 1))), 2)
            return e.fmul(e.sitofp(e.sext(integers, vec(I32, lanes)), vec(F32, lanes)), e.splat(scale, lanes))
        if self.shape.dtype == "f16":
            return e.half_to_float(e.read(vec(I16, lanes), address, e.times(column, 2)))
        return e.read(vec(F32, lanes), address, e.times(column, 4))

    def _widen(self, value: Value) -> Value:
        """Zeros up to a whole vector."""
        n = value.type.count
        lanes = [min(i, n) for i in range(self.lanes)]
        return value if n == self.lanes else self.e.take(value, lanes, const(value.type, 0.0))

    def _sum(self, a: Value, b: Value) -> Value:
        return self.e.fadd(a, b)

    def _larger(self, a: Value, b: Value) -> Value:
        return self.e.select(self.e.fcmp_ordered(">", a, b), a, b)

    def _fold(self, vectors: Sequence[Value], combine: Callable[[Value, Value], Value] | None = None) -> Value:
        """The sum (or other combination) of each vector's lanes, side by side; each adds up in the same order.

        There are at most as many vectors as lanes; lanes past their number hold anything. Halves are combined, then
        halves of those.
        """
        e, vectors = self.e, list(vectors)
        vectors += vectors[-1:] * ((1 << (len(vectors) - 1).bit_length()) - len(vectors))
        combine = combine or self._sum
        width = self.lanes
        while width > 1:
            half = width // 2
            pairs = list(zip(vectors[::2], vectors[1::2], strict=True)) if len(vectors) > 1 else [(vectors[0], None)]
            starts = range(0, vectors[0].type.count * (2 if len(vectors) > 1 else 1), width)
            low = [s + i for s in starts for i in range(half)]
            high = [s + half + i for s in starts for i in range(half)]
            vectors = [combine(e.take(a, low, b), e.take(a, high, b)) for a, b in pairs]
            width = half
        return vectors[0]
