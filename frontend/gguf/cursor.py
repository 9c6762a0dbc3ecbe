"""A place in a GGUF's header, and the bounds that every step of it keeps."""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ..errors import InputError, shown_path

# Limits far above any real model, so that even a large file full of nonsense is refused soon.
_MAX_NAME_BYTES, _MAX_STRING_BYTES = 1 << 16, 1 << 24
_MAX_MEMORY = 92 << 20
"""For all that a model's headers say: a vocabulary of 262,144 tokens and half a million merges takes 80 MB."""
_ITEM_MEMORY, ARRAY_MEMORY = 64, 1024
"""Reckoned for a text, a key or a tensor beside its characters, and for an array in another beside its elements."""
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass
class Budget:
    """The memory that the headers of a model's files may still take, in bytes."""

    left: int = _MAX_MEMORY


class Cursor:
    """A place in the header that moves forward; every step is checked against the file's size before it is taken."""

    def __init__(self, path: Path, mapping: mmap.mmap, position: int, budget: Budget) -> None:
        self.path = path
        self.mapping = mapping
        self.size = len(mapping)
        self.position = position
        self.budget = budget

    def fail(self, message: str) -> NoReturn:
        """Refuses the file."""
        raise InputError(f"{shown_path(self.path)}: {message}")

    def take(self, count: int, what: str) -> int:
        """Step over `count` bytes; returns where they begin."""
        begin = self.position
        if count > self.size - begin:
            self.fail(
                f"the header is cut off or damaged: {what} needs {count} bytes at {begin}, "
                f"but the file ends at {self.size}"
            )
        self.position = begin + count
        return begin

    def expect(self, count: int, least_bytes: int, what: str, *, extra: int = 0, memory: int = _ITEM_MEMORY) -> None:
        """Refuse a count of items, each of at least `least_bytes` in the file and of `memory` once they are read, that
        the rest of the file can't hold or that no model needs."""
        left = self.size - self.position - extra
        if count * least_bytes > left:
            self.fail(
                f"the header is cut off or damaged: {what} is {count}, "
                f"but the rest of the file ({max(left, 0)} bytes) can't hold that many"
            )
        self.claim(count * memory, f"{what} is {count}, which")

    def claim(self, size: int, what: str) -> None:
        """Refuse what would make the header too large for memory."""
        self.budget.left -= size
        if self.budget.left < 0:
            self.fail(f"{what} makes the header larger than {_MAX_MEMORY} bytes in memory, which no model needs")

    def u32(self, what: str) -> int:
        """The next number; `what` it is, for messages, here and below."""
        return _U32.unpack_from(self.mapping, self.take(4, what))[0]

    def u64(self, what: str) -> int:
        return _U64.unpack_from(self.mapping, self.take(8, what))[0]

    def string(self, what: str, most: int = _MAX_STRING_BYTES) -> str:
        """The next text, of so many bytes at the most."""
        length = self.u64(f"the length of {what}")
        if length > most:
            self.fail(f"{what} has a length of {length} bytes, the most is {most}")
        begin = self.take(length, what)
        text = self.mapping[begin : begin + length]
        self.claim(_text_memory(text), what)
        return text.decode("utf-8", "surrogateescape")

    def name(self, what: str) -> str:
        """The next text, which is a name."""
        name = self.string(what, _MAX_NAME_BYTES)
        if not name:
            self.fail(f"{what} is empty")
        return name

    def strings(self, count: int, what: str) -> tuple[str, ...]:
        """As `string`, many times; written out because a vocabulary has hundreds of thousands."""
        mapping, size, length_at, position = self.mapping, self.size, _U64.unpack_from, self.position
        left = self.budget.left
        found: list[str] = []
        for number in range(count):
            begin = position + 8
            if begin > size:
                self.position = position
                self.take(8, f"the length of string {number} in {what}")
            (length,) = length_at(mapping, position)
            position = begin + length
            if position > size or length > _MAX_STRING_BYTES:
                self.position = begin - 8
                self.string(f"string {number} in {what}")
            text = mapping[begin:position]
            left -= _text_memory(text)
            if left < 0:
                break
            found.append(text.decode("utf-8", "surrogateescape"))
        self.position = position
        self.claim(self.budget.left - left, what)
        return tuple(found)


def _text_memory(text: bytes) -> int:
    """The bytes in the mapping and in Python, which takes up to four for each where one isn't ASCII."""
    return len(text) * (2 if text.isascii() else 5)
