"""A thin layer over llvmlite.ir in which kernels read as what they do: vectors, shuffles, loops, dot products.

Everything is portable LLVM IR that the target's back end lowers well; where a target has an instruction that plain IR
does not reach, or lacks one that plain IR would turn into a library call, the choice is made here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llvmlite import ir

from .target import Target

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
PTR, VOID = ir.PointerType(), ir.VoidType()
Value = Any
"""An LLVM value. llvmlite has no usable types of its own: its decorated methods look as if they returned None."""
Index = Any
"""An i64 value or a Python number."""
_Builder: Any = ir.IRBuilder
_LARGEST_PERMUTED_TABLE = 512
"""Entries up to which permutes are faster than loads, measured on a Zen 4; gathers are slower than both."""


def vec(element: ir.Type, lanes: int) -> ir.VectorType:
    """The type of a vector."""
    return ir.VectorType(element, lanes)


def const(kind: ir.Type, value: float | Sequence[float]) -> ir.Constant:
    """A constant of the type; a single number fills every lane of a vector type."""
    if isinstance(kind, ir.VectorType):
        lanes = list(value) if isinstance(value, Sequence) else [value] * kind.count
        return ir.Constant(kind, [ir.Constant(kind.element, v) for v in lanes])
    if isinstance(kind, ir.ArrayType) and isinstance(value, Sequence):
        return ir.Constant(kind, [ir.Constant(kind.element, v) for v in value])
    return ir.Constant(kind, value)


class Emitter(_Builder):
    """llvmlite's builder with the words that kernels need. Addresses are pointers, offsets count bytes."""

    def __init__(self, block: ir.Block, target: Target) -> None:
        super().__init__(block)
        self.target = target

    # Scalars and constants

    def index(self, value: Index) -> Value:
        """An i64 from an i64 or a Python number."""
        return const(I64, value) if isinstance(value, int) else value

    def minimum(self, a: Index, b: Index) -> Value:
        """The smaller of two i64 (signed)."""
        a, b = self.index(a), self.index(b)
        return self.select(self.icmp_signed("<", a, b), a, b)

    def maximum(self, a: Index, b: Index) -> Value:
        """The larger of two i64 (signed)."""
        a, b = self.index(a), self.index(b)
        return self.select(self.icmp_signed(">", a, b), a, b)

    def times(self, value: Value, factor: int) -> Value:
        """value * factor, without overflow."""
        return self.mul(value, const(value.type, factor), flags=("nsw",))

    def over(self, value: Value, divisor: int) -> Value:
        """value / divisor for a value that is not negative, rounded down."""
        return self.udiv(value, const(value.type, divisor))

    # Memory

    def at(self, address: Value, offset: Index) -> Value:
        """The address `offset` bytes further on."""
        return self.gep(address, [self.index(offset)], source_etype=I8)

    def read(self, kind: ir.Type, address: Value, offset: Index = 0, align: int = 1) -> Value:
        """The value of the type at address + offset."""
        return self.load(self.at(address, offset), typ=kind, align=align)

    def write(self, value: Value, address: Value, offset: Index = 0, align: int = 1) -> None:
        """Stores the value at address + offset."""
        self.store(value, self.at(address, offset), align=align)

    def scratch(self, size: int, align: int = 64) -> Value:
        """Stack memory of `size` bytes that lives for the whole call."""
        with self.goto_entry_block():
            slot = self.alloca(ir.ArrayType(I8, size))
        slot.align, slot.type = align, PTR  # llvmlite's alloca is still a typed pointer
        return slot

    def prefetch(self, address: Value, offset: Index, size: int, *, once: bool = False) -> None:
        """Asks for the cache lines of [address + offset, + size); going past the end of memory is harmless.

        Those that are read `once` don't drive others out of the caches that all cores share.
        """
        fetch = self.declare("llvm.prefetch.p0", VOID, PTR, I32, I32, I32)
        address = self.at(address, offset)
        for line in range(0, size, 64):
            self.call(fetch, [self.at(address, line), const(I32, 0), const(I32, 0 if once else 3), const(I32, 1)])

    # Control

    def loop(
        self, start: Index, stop: Index, step: int, carried: Sequence[Value], body: Callable[..., Sequence[Value]]
    ) -> list[Value]:
        """for i in range(start, stop, step): carried = body(i, *carried). Returns the last `carried`."""
        begin = self.block
        head, inside, done = (self.append_basic_block(n) for n in ("head", "body", "done"))
        start, stop = self.index(start), self.index(stop)
        self.branch(head)
        self.position_at_end(head)
        i = self.phi(I64)
        i.add_incoming(start, begin)
        phis = [self.phi(v.type) for v in carried]
        for phi, value in zip(phis, carried, strict=True):
            phi.add_incoming(value, begin)
        self.cbranch(self.icmp_signed("<", i, stop), inside, done)
        self.position_at_end(inside)
        results = body(i, *phis)
        i.add_incoming(self.add(i, const(I64, step), flags=("nsw",)), self.block)
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value, self.block)
        self.branch(head)
        self.position_at_end(done)
        return phis

    def each(self, start: Index, stop: Index, step: int, body: Callable[[Value], object]) -> None:
        """for i in range(start, stop, step): body(i)."""

        def run(i: Value) -> tuple[()]:
            body(i)
            return ()

        self.loop(start, stop, step, (), run)

    # Vectors

    def splat(self, value: Value, lanes: int) -> Value:
        """The scalar in every lane."""
        undefined = ir.Constant(vec(value.type, lanes), ir.Undefined)
        one = self.insert_element(undefined, value, const(I32, 0))
        return self.shuffle_vector(one, undefined, const(vec(I32, lanes), 0))

    def take(self, value: Value, lanes: Sequence[int], other: Value | None = None) -> Value:
        """The lanes of `value` (counted on into `other`) in the order given."""
        other = ir.Constant(value.type, ir.Undefined) if other is None else other
        return self.shuffle_vector(value, other, const(vec(I32, len(lanes)), tuple(lanes)))

    def concat(self, values: Sequence[Value]) -> Value:
        """Vectors of one type, a power of two of them, one after another."""
        values = list(values)
        while len(values) > 1:
            lanes = range(2 * values[0].type.count)
            values = [self.take(a, lanes, b) for a, b in zip(values[::2], values[1::2], strict=True)]
        return values[0]

    def declare(self, name: str, result: ir.Type, *arguments: ir.Type) -> ir.Function:
        """An LLVM intrinsic, declared once in the module."""
        known = self.module.globals.get(name)
        return known or ir.Function(self.module, ir.FunctionType(result, arguments), name)

    def read_pieces(self, address: Value, offsets: Sequence[int], size: int, extent: int) -> Value:
        """Pieces of `size` bytes at the offsets, side by side in one vector of bytes.

        With byte permutes, two loads over all `extent` readable bytes and one permute serve up to 128 of them;
        elsewhere each piece is a load.
        """
        if self.target.has_vbmi and len(offsets) > 2 and 64 < extent <= 128:
            low, high = self.read(vec(I8, 64), address), self.read(vec(I8, 64), address, extent - 64)
            at = [o + i for o in offsets for i in range(size)]
            return self.take(low, [a if a < 64 else a - (extent - 64) + 64 for a in at], high)
        pieces = {o: self.read(vec(I8, size), address, o) for o in offsets}
        return self.concat([pieces[o] for o in offsets])

    def half_to_float(self, bits: Value) -> Value:
        """IEEE halves given as i16 (scalar or vector) to float32, exactly, NaN and subnormals too."""
        lanes = bits.type.count if isinstance(bits.type, ir.VectorType) else None
        half, word, real = ((vec(t, lanes) if lanes else t) for t in (F16, I32, F32))
        if self.target.has_half_conversion:
            return self.fpext(self.bitcast(bits, half), real)
        wide = self.zext(bits, word)
        sign = self.shl(self.and_(wide, const(word, 0x8000)), const(word, 16))
        magnitude = self.shl(self.and_(wide, const(word, 0x7FFF)), const(word, 13))
        exponent = self.and_(magnitude, const(word, 0x0F800000))
        normal = self.add(magnitude, const(word, (127 - 15) << 23))
        special = self.add(magnitude, const(word, (255 - 31) << 23))
        # A subnormal is mantissa * 2^-24: give it the exponent of 2^-14 and take 2^-14 away again, which is exact.
        base = const(word, 113 << 23)
        small = self.fsub(self.bitcast(self.add(magnitude, base), real), self.bitcast(base, real))
        is_small = self.icmp_unsigned("==", exponent, const(word, 0))
        is_special = self.icmp_unsigned("==", exponent, const(word, 0x0F800000))
        value = self.select(is_small, self.bitcast(small, word), self.select(is_special, special, normal))
        return self.bitcast(self.or_(value, sign), real)

    def fma_(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c in float32, rounded once where the target can."""
        if not self.target.has_fma:
            return self.fadd(self.fmul(a, b), c)
        suffix = f"v{a.type.count}f32" if isinstance(a.type, ir.VectorType) else "f32"
        return self.call(self.declare(f"llvm.fma.{suffix}", a.type, a.type, a.type, a.type), [a, b, c])

    def sum_lanes(self, value: Value) -> Value:
        """The sum of a float32 vector's lanes, in any order."""
        add = self.declare(f"llvm.vector.reduce.fadd.v{value.type.count}f32", F32, F32, value.type)
        return self.call(add, [const(F32, 0.0), value], fastmath=("reassoc",))

    def dot_pairs(self, total: Value, a: Value, b: Value) -> Value:
        """total[i] + a[2i] * b[2i] + a[2i+1] * b[2i+1], i32 lanes from i16 ones.

        VNNI has the instruction (vpdpwssd). One plain form is what LLVM knows as pmaddwd on x86; the other, in which
        even and odd lanes part before they are widened, becomes multiply-adds elsewhere.
        """
        lanes = total.type.count
        if self.target.has_avx512_vnni and lanes == 16:
            dot = self.declare("llvm.x86.avx512.vpdpwssd.512", total.type, total.type, a.type, b.type)
            return self.call(dot, [total, a, b])
        if not self.target.is_x86:
            for half in range(2):
                x, y = (self.sext(self.take(v, range(half, 2 * lanes, 2)), total.type) for v in (a, b))
                total = self.add(total, self.mul(x, y, flags=("nsw",)))
            return total
        wide = vec(I32, 2 * lanes)
        product = self.mul(self.sext(a, wide), self.sext(b, wide), flags=("nsw",))
        even, odd = self.take(product, range(0, 2 * lanes, 2)), self.take(product, range(1, 2 * lanes, 2))
        return self.add(total, self.add(even, odd))

    def dot_bytes(self, total: Value, a: Value, b: Value, signed: bool) -> Value:
        """total[i] + the four products of the bytes a and the signed ones b from 4i on, for 64 bytes.

        The target must have the instruction for bytes a of this kind: `dots_bytes`.
        """
        if self.target.is_x86:
            dot = self.declare("llvm.x86.avx512.vpdpbusd.512", total.type, total.type, a.type, b.type)
            return self.call(dot, [total, a, b])
        four, bytes_ = vec(I32, 4), vec(I8, 16)
        name = f"llvm.aarch64.neon.{'s' if signed else 'us'}dot.v4i32.v16i8"
        dot = self.declare(name, four, four, bytes_, bytes_)
        pieces = [
            [self.take(v, range(at * step, at * step + step)) for v, step in ((total, 4), (a, 16), (b, 16))]
            for at in range(4)
        ]
        return self.concat([self.call(dot, piece) for piece in pieces])

    def look_up(self, table: Sequence[int], nibbles: Value) -> Value:
        """table[n] for each byte n below 16, from a table of 16 bytes."""
        kind = nibbles.type
        for is_there, name, width in (
            (self.target.has_avx512, "llvm.x86.avx512.pshuf.b.512", 64),
            (self.target.has_avx2, "llvm.x86.avx2.pshuf.b", 32),
            (self.target.arch == "aarch64", "llvm.aarch64.neon.tbl1.v16i8", 16),
        ):
            if is_there and kind.count % width == 0:
                part = vec(I8, width)
                shuffle, repeated = self.declare(name, part, part, part), const(part, [*table] * (width // 16))
                parts = [self.take(nibbles, range(at, at + width)) for at in range(0, kind.count, width)]
                return self.concat([self.call(shuffle, [repeated, p]) for p in parts])
        # A tree of choices, one level for each bit.
        values: list[Value] = [const(kind, value) for value in table]
        for bit in range(4):
            is_set = self.icmp_unsigned("!=", self.and_(nibbles, const(kind, 1 << bit)), const(kind, 0))
            mask = self.sext(is_set, kind)
            pairs = zip(values[::2], values[1::2], strict=True)
            values = [self.xor(low, self.and_(mask, self.xor(low, high))) for low, high in pairs]
        return values[0]

    def look_up_modulo(self, table: Sequence[int], values: Value) -> Value:
        """table[v % len(table)] for each of 64 bytes, from a table of 8 or 16 bytes."""
        kind = values.type
        if self.target.has_vbmi:
            permute = self.declare("llvm.x86.avx512.permvar.qi.512", kind, kind, kind)
            return self.call(permute, [const(kind, [*table] * (64 // len(table))), values])
        return self.look_up([*table] * (16 // len(table)), self.and_(values, const(kind, len(table) - 1)))

    def pick(self, table: Sequence[int], indices: Value) -> Value:
        """table[i] for each of 32 i16, from a table of i16 whose length is a power of two."""
        kind = indices.type
        if self.target.has_avx512 and len(table) <= _LARGEST_PERMUTED_TABLE:
            # Each permute sees 64 entries; the higher bits of an index choose between their results.
            permute = self.declare("llvm.x86.avx512.vpermi2var.hi.512", kind, kind, kind, kind)
            pieces = [const(kind, table[at : at + 32]) for at in range(0, len(table), 32)]
            values = [self.call(permute, [a, indices, b]) for a, b in zip(pieces[::2], pieces[1::2], strict=True)]
            bit = 64
            while len(values) > 1:
                is_set = self.icmp_unsigned("!=", self.and_(indices, const(kind, bit)), const(kind, 0))
                values = [self.select(is_set, b, a) for a, b in zip(values[::2], values[1::2], strict=True)]
                bit *= 2
            return values[0]
        memory, quads = self.table(I16, table), self.bitcast(indices, vec(I64, 8))
        result = ir.Constant(kind, ir.Undefined)
        for lane in range(kind.count):
            four = self.extract_element(quads, const(I32, lane // 4))
            index = self.and_(self.lshr(four, const(I64, lane % 4 * 16)), const(I64, len(table) - 1))
            result = self.insert_element(
                result, self.read(I16, memory, self.times(index, 2), align=2), const(I32, lane)
            )
        return result

    def table(self, kind: ir.Type, values: Sequence[int]) -> Value:
        """The address of constants in the object."""
        array = const(ir.ArrayType(kind, len(values)), values)
        held: Any = ir.GlobalVariable(self.module, array.type, self.module.get_unique_name("table"))
        held.linkage, held.global_constant, held.initializer, held.align = "private", True, array, 64
        return self.bitcast(held, PTR)

    def multishift(self, quads: Value, starts: Sequence[int], up: int = 0) -> Value:
        """For each of 8 i64 eight bytes: at bit `up` and above, the bits of the i64 from starts[0], starts[1] ... on.

        They are meant up to the end of the byte in which they start; the rest of each byte is left open.
        """
        kind, words = vec(I8, 64), vec(I16, 32)
        if self.target.has_vbmi:
            shift = self.declare("llvm.x86.avx512.pmultishift.qb.512", kind, kind, kind)
            amounts = const(kind, [(start - up) % 64 for start in starts] * 8)
            return self.call(shift, [amounts, self.bitcast(quads, kind)])
        sources = self.take(self.bitcast(quads, kind), [8 * quad + start // 8 for quad in range(8) for start in starts])
        pairs = self.bitcast(sources, words)
        even, odd = (
            self.bitcast(self.lshr(pairs, const(words, [start % 8 for start in starts[n::2]] * 8)), kind)
            for n in range(2)
        )
        both = self.bitcast(self.take(even, [n + n % 2 * 64 for n in range(64)], odd), words)
        return self.bitcast(self.shl(both, const(words, up)) if up else both, kind)

    def move_bits(self, value: Value, moves: Mapping[int, int]) -> Value:
        """For each of 64 bytes: bit `to` is the bit moves[to] of it, and others are clear."""
        kind, words = value.type, vec(I32, 16)
        if self.target.has_bit_permutes:
            # The lowest byte of a matrix selects for the highest bit.
            matrix = const(kind, [1 << moves[to] if to in moves else 0 for to in reversed(range(8))] * 8)
            product = self.declare("llvm.x86.vgf2p8affineqb.512", kind, kind, kind, I8)
            return self.call(product, [value, matrix, const(I8, 0)])
        masks: dict[int, int] = {}
        for to, origin in moves.items():
            masks[to - origin] = masks.get(to - origin, 0) | 1 << to
        # What crosses a byte is masked away.
        wide = self.bitcast(value, words)
        moved = [
            self.and_(
                self.shl(wide, const(words, by)) if by >= 0 else self.lshr(wide, const(words, -by)),
                const(words, mask * 0x01010101),
            )
            for by, mask in masks.items()
        ]
        return self.bitcast(functools.reduce(self.or_, moved), kind)

    def merge(self, mask: int, a: Value, b: Value) -> Value:
        """The bits of 64 bytes a where `mask`, the same for each byte, has them set, and those of b elsewhere."""
        kind, words = a.type, vec(I32, 16)
        if self.target.has_avx512:
            logic = self.declare("llvm.x86.avx512.pternlog.d.512", words, words, words, words, I32)
            operands = [self.bitcast(v, words) for v in (const(kind, mask), a, b)]
            return self.bitcast(self.call(logic, [*operands, const(I32, 0xCA)]), kind)
        return self.or_(self.and_(a, const(kind, mask)), self.and_(b, const(kind, 255 - mask)))

    def count_bits(self, value: Value) -> Value:
        """The number of set bits of each byte."""
        return self.call(self.declare(f"llvm.ctpop.v{value.type.count}i8", value.type, value.type), [value])

    def transpose_quads(self, rows: Sequence[Value]) -> list[Value]:
        """Four vectors as 4 x 4 matrices side by side, one per four lanes, each of them transposed."""
        lanes = range(0, rows[0].type.count, 4)
        n = len(lanes) * 4

        def weave(a: Value, b: Value, first: Sequence[int]) -> Value:
            return self.take(a, [lane + f % 4 + n * (f // 4) for lane in lanes for f in first], b)

        low = [weave(rows[r], rows[r + 1], (0, 4, 1, 5)) for r in (0, 2)]
        high = [weave(rows[r], rows[r + 1], (2, 6, 3, 7)) for r in (0, 2)]
        return [weave(a, b, first) for a, b in (low, high) for first in ((0, 1, 4, 5), (2, 3, 6, 7))]
