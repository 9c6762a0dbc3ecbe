"""Archives byte for byte, and as a reader of its own and IREE's see them."""

import json
import struct
from pathlib import Path

import iree.runtime as rt
from ggufc.backends.bundles.archive import lay_out
from ggufc.frontend.ggml_types import by_name

TENSORS = [("a", by_name("f32"), (3,)), ("blk.0.b", by_name("int8"), (5, 2, 64)), ("ß", by_name("q4_k"), (1, 512))]
SIZES = {"a": 12, "blk.0.b": 10 * 68, "ß": 288}


def read_archive(raw: bytes) -> dict[str, tuple[int, int, dict[str, object]]]:
    """Offset, length and note of each entry, by iree/schemas/parameter_archive.h."""
    magic, major, minor, size, following, flags, count = struct.unpack_from("<4sHHQQQQ", raw)
    entries_at, entries_size, words_at, words_size, data_at, data_size = struct.unpack_from("<6Q", raw, 40)
    assert (magic, major, minor, size, following, flags) == (b"IRPA", 0, 0, 88, 0, 0)
    assert data_at % 64 == 0
    assert entries_at % 16 == 0
    found, at = {}, entries_at
    for _ in range(count):
        entry_size, kind, _, name_at, name_size, note_at, note_size, alignment, start, length = struct.unpack_from(
            "<QIQ QQ QQ Q QQ", raw, at
        )
        assert (entry_size, kind, alignment, start % 64) == (76, 2, 64, 0)
        assert name_at + name_size <= words_size
        assert note_at + note_size <= words_size
        assert start + length <= data_size
        name, note = raw[words_at + name_at :][:name_size].decode(), raw[words_at + note_at :][:note_size]
        found[name] = (data_at + start, length, json.loads(note))
        at += -(-entry_size // 16) * 16
    assert at == entries_at + entries_size
    return found


def test_tensors_lie_apart_at_multiples_of_64() -> None:
    layout = lay_out(TENSORS, "5e1f")
    assert len(layout.header) % 64 == 0
    starts = [info.offset for info in layout.tensors]
    assert starts == [len(layout.header), len(layout.header) + 64, len(layout.header) + 64 + 704]
    assert layout.size == starts[-1] + 320
    assert {info.name: info.nbytes for info in layout.tensors} == SIZES


def test_a_reader_of_its_own_finds_every_tensor() -> None:
    layout = lay_out(TENSORS, "5e1f")
    found = read_archive(layout.header)
    assert {name: (start, length) for name, (start, length, _) in found.items()} == {
        info.name: (info.offset, info.nbytes) for info in layout.tensors
    }
    assert found["blk.0.b"][2] == {"type": "int8", "shape": [5, 2, 64], "source": "5e1f"}


def test_iree_reads_the_bytes(tmp_path: Path) -> None:
    layout, path = lay_out(TENSORS, ""), tmp_path / "weights.irpa"
    whole = bytearray(layout.header.ljust(layout.size, b"\0"))
    for n, info in enumerate(layout.tensors):
        whole[info.offset : info.offset + info.nbytes] = bytes([n + 1]) * info.nbytes
    path.write_bytes(whole)
    index = rt.ParameterIndex()
    index.load(str(path))
    found = {name: bytes(memoryview(entry.file_view)) for name, entry in index.items()}
    assert found == {name: bytes([n + 1]) * size for n, (name, size) in enumerate(SIZES.items())}


def test_the_header_to_the_byte() -> None:
    layout = lay_out([("w", by_name("f32"), (1,))], "s")
    note = b'{"type": "f32", "shape": [1], "source": "s"}'
    wanted = (
        b"IRPA" + bytes(4) + struct.pack("<4Q", 88, 0, 0, 1) + struct.pack("<6Q", 96, 80, 176, 45, 256, 64) + bytes(8)
        + struct.pack("<QIQ", 76, 2, 0) + struct.pack("<7Q", 0, 1, 1, len(note), 64, 0, 4) + bytes(4)
        + b"w" + note
    )  # fmt: skip
    assert layout.header == wanted.ljust(256, b"\0")
