"""How a quantized type is described: a layout and one function that unpacks a chunk; every kernel reads just these.

A weight is worth `scale * (byte - offset) - minimum`, where scale = d * sub: d is a float32 that stands for a block,
sub a small integer of a sub-block where the type has those. A *chunk* is what one unpack takes: a super-block of 256
weights or four blocks of 32. It comes as vectors of 64 bytes; each vector is four *runs* of 16 weights that are
neighbours in the row, or eight of 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..emit import F32, I8, I16, Emitter, Value, const, vec


@dataclass(frozen=True)
class Part:
    """Where the 64 bytes of one vector belong.

    `starts`: the first element of each run. `lanes`: the lane of the scale vector for each i32 lane, that is for four
    neighbouring bytes; a run has one scale. `mask`: the bits of each byte that hold the weight; others may hold
    anything.
    """

    starts: tuple[int, ...]
    lanes: tuple[int, ...]
    mask: int = 255

    @property
    def shift(self) -> int:
        """Bytes under the mask are 2^shift times too large; the scale takes that back, which saves shifting them."""
        return shift_of(self.mask)

    @property
    def run(self) -> int:
        """Weights in a run."""
        return 64 // len(self.starts)


def shift_of(mask: int) -> int:
    """The place of the lowest bit of a mask."""
    return (mask & -mask).bit_length() - 1


def spread(*lanes: int) -> tuple[int, ...]:
    """The scale lanes of 16 i32 lanes from those of two halves or four runs."""
    return tuple(lane for lane in lanes for _ in range(16 // len(lanes)))


@dataclass(frozen=True)
class Minimum:
    """A lane of the scale vector that is the minimum of the elements [start, start + count)."""

    lane: int
    start: int
    count: int


@dataclass(frozen=True)
class Unpacked:
    """The values of one chunk: 64 bytes per part, of which its mask takes the weights; the float32 vector d; the i32
    vector sub where the type has it.
    """

    parts: tuple[Value, ...]
    d: Value
    sub: Value | None = None


@dataclass(frozen=True)
class QuantType:
    """A quantized type.

    `unpack(e, address, factors)` emits the reading of one chunk at `address`, with d multiplied by the vector `factors`
    if there is one; it reads no byte outside of the chunk. `largest` bounds |byte - offset| times |sub|. If parts have
    masks, they are four with runs of 16, of which the first two are fields of the same bytes, as are the last two.
    """

    name: str
    block: int
    block_bytes: int
    chunk: int
    parts: tuple[Part, ...]
    largest: int
    unpack: Callable[[Emitter, Value, Value | None], Unpacked]
    signed: bool = False
    is_made_of_words: bool = False
    """Whether the bytes are put together from 16-bit lanes, so that taking them apart again is free."""
    offset: int = 0
    minima: tuple[Minimum, ...] = ()
    """None, or one for every element, of equal counts: 16 or 32."""
    head: int = 0
    """Bytes of a row before its blocks: none, or those of a float32 that scales the whole row."""

    @property
    def blocks_per_chunk(self) -> int:
        return self.chunk // self.block

    @property
    def chunk_bytes(self) -> int:
        return self.blocks_per_chunk * self.block_bytes

    @property
    def has_fields(self) -> bool:
        """Whether the parts are fields of bytes that they share."""
        return any(part.mask != 255 for part in self.parts)

    @property
    def gains(self) -> tuple[float, ...]:
        """What each lane of the scale vector must be multiplied with for bytes that were not shifted."""
        used = {lane: 2.0**-part.shift for part in self.parts for lane in part.lanes}
        used |= {minimum.lane: 1.0 for minimum in self.minima}
        return tuple(used.get(lane, 1.0) for lane in range(max(used) + 1))

    @property
    def span(self) -> int:
        """Elements that share a minimum, or a block of a type that has none."""
        return self.minima[0].count if self.minima else self.block

    def minimum_lane(self, element: int) -> int | None:
        """The scale lane that is the minimum of this element of a chunk."""
        return next((m.lane for m in self.minima if m.start <= element < m.start + m.count), None)

    def row_bytes(self, e: Emitter, cols: Value) -> Value:
        """Bytes of a row of `cols` weights."""
        return self.column_at(e, cols)

    def column_at(self, e: Emitter, col: Value) -> Value:
        """Bytes from the start of a row to the block of the weight `col`."""
        blocks = e.times(e.over(col, self.block), self.block_bytes)
        return e.add(blocks, e.index(self.head)) if self.head else blocks

    def row_factors(self, e: Emitter, row: Value) -> Value | None:
        """What d is multiplied with in the whole row at the address `row`, for each lane of the scale vector."""
        return e.splat(e.read(F32, row), len(self.gains)) if self.head else None

    def scales(self, e: Emitter, chunk: Unpacked) -> Value:
        """The float32 vector d * sub."""
        return chunk.d if chunk.sub is None else e.fmul(chunk.d, e.sitofp(chunk.sub, chunk.d.type))

    def words(self, e: Emitter, part: Value) -> tuple[Value, Value]:
        """A part's even and its odd bytes as i16."""
        kind = vec(I16, 32)
        both, eight = e.bitcast(part, kind), const(kind, 8)
        if self.signed:
            return e.ashr(e.shl(both, eight), eight), e.ashr(both, eight)
        return e.and_(both, const(kind, 255)), e.lshr(both, eight)

    def runs(self, e: Emitter, chunk: Unpacked) -> Iterator[tuple[int, int, Value]]:
        """For each run its first element, its scale lane and its integers (byte - offset) as i16."""
        for part, bytes_ in zip(self.parts, chunk.parts, strict=True):
            kind, values = vec(I16, part.run), masked(e, bytes_, part.mask)
            for k, (start, lane) in enumerate(zip(part.starts, part.lanes[:: part.run // 4], strict=True)):
                run = e.take(values, range(part.run * k, part.run * k + part.run))
                wide = e.sext(run, kind) if self.signed else e.zext(run, kind)
                wide = e.lshr(wide, const(kind, part.shift)) if part.shift else wide
                yield start, lane, e.sub(wide, const(kind, self.offset)) if self.offset else wide

    def padded(self, e: Emitter, address: Value, blocks: Value, scratch: Value) -> Value:
        """The address of a whole chunk that begins with up to `blocks` blocks at `address`.

        Where fewer blocks are left in the row than a chunk has, they are copied to `scratch` (chunk_bytes, zero where
        it was never written) and zeros follow: all types give a weight of zero there, or meet an activation of zero.
        """
        if self.blocks_per_chunk == 1:
            return address
        is_whole = e.icmp_signed(">=", blocks, e.index(self.blocks_per_chunk))

        def copy(i: Value) -> None:
            at = e.times(i, self.block_bytes)
            e.write(e.read(vec(I8, self.block_bytes), e.at(address, at)), e.at(scratch, at))

        e.each(0, e.select(is_whole, e.index(0), blocks), 1, copy)
        return e.select(is_whole, address, scratch)

    def zero_scratch(self, e: Emitter) -> Value:
        """Scratch memory for `padded`."""
        scratch = e.scratch(self.chunk_bytes)
        for i in range(self.blocks_per_chunk):
            e.write(const(vec(I8, self.block_bytes), 0), scratch, i * self.block_bytes)
        return scratch


def four_halves(e: Emitter, address: Value, stride: int, copies: int, factors: Value | None) -> Value:
    """The halves at the start of four blocks as float32, each `copies` times, times the factors."""
    offsets = [i * stride for i in range(4)]
    bits = e.read_pieces(address, [o for o in offsets for _ in range(copies)], 2, 4 * stride)
    return scaled(e, e.half_to_float(e.bitcast(bits, vec(I16, 4 * copies))), factors)


def four_pairs(e: Emitter, address: Value, stride: int, factors: Value | None) -> Value:
    """The halves d and m at the start of four blocks as float32 d, -m, d, -m for each block, times the factors."""
    pieces = e.read_pieces(address, [i * stride for i in range(4) for _ in range(2)], 4, 4 * stride)
    bits = e.bitcast(pieces, vec(I16, 16))
    return scaled(e, e.half_to_float(e.xor(bits, const(bits.type, [0, 0x8000] * 8))), factors)


def four_nibbles(e: Emitter, address: Value, at: int, stride: int) -> tuple[Value, Value]:
    """The low and the high nibbles of the 16 bytes at byte `at` of four blocks."""
    nibbles = e.read_pieces(address, [b * stride + at for b in range(4)], 16, 4 * stride)
    return low_nibbles(e, nibbles), high_nibbles(e, nibbles)


def _halves_of_four(lanes: tuple[int, ...]) -> tuple[Part, Part]:
    return Part((0, 32, 64, 96), lanes), Part((16, 48, 80, 112), lanes)


HALVES_OF_FOUR = _halves_of_four(tuple(range(16)))
"""What `four_nibbles` gives, scaled by `four_halves` with four copies."""
HALVES_OF_FOUR_PAIRS = _halves_of_four(spread(0, 4, 8, 12))
"""What `four_nibbles` gives, scaled by `four_pairs`."""
MINIMA_OF_FOUR = tuple(Minimum(4 * b + 3, 32 * b, 32) for b in range(4))
"""The minima of four blocks in what `four_pairs` gives."""
PAIR_STARTS = tuple((32 * j, 32 * j + 16, 32 * j + 128, 32 * j + 144) for j in range(4))
"""The runs of 64 bytes of bit pairs, pair by pair, in the types where pair j of byte 32n + l is 128n + 32j + l."""
BY_RUNS = tuple(8 * n + 2 * j + half for n in range(2) for half in range(2) for j in range(4))
"""The groups of 16 in those types, run by run of the bytes: the order in which `linear_one` has the products."""


def scaled(e: Emitter, value: Value, factors: Value | None) -> Value:
    """value * factors, if there are any."""
    return value if factors is None else e.fmul(value, factors)


def masked(e: Emitter, values: Value, mask: int) -> Value:
    """The bits of each byte that the mask has."""
    return values if mask == 255 else e.and_(values, const(values.type, mask))


def low_nibbles(e: Emitter, values: Value) -> Value:
    """The lower four bits of each byte."""
    return e.and_(values, const(values.type, 15))


def high_nibbles(e: Emitter, values: Value) -> Value:
    """The upper four bits of each byte, shifted down."""
    return e.lshr(values, const(values.type, 4))
