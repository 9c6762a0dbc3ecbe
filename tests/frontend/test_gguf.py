"""The GGUF reader on files written byte by byte, by gguf-py, by hypothesis, and on a real one."""

import ctypes
import hashlib
import os
import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
import xllamacpp.xllamacpp as xllamacpp
from ggufc.frontend.errors import GgufcError, InputError, UnsupportedError, quoted
from ggufc.frontend.ggml_types import BY_ID, BY_NAME, by_id, by_name
from ggufc.frontend.gguf.reader import read_gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

U8, U32, I32, F32, BOOL, STRING, ARRAY = 0, 4, 5, 6, 7, 8, 9


# A GGUF file by hand, one function per part of the format.
def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, value_type: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", value_type) + value


def array(element_type: int, count: int, elements: bytes) -> bytes:
    return struct.pack("<IQ", element_type, count) + elements


def tensor(name: str | bytes, ne: tuple[int, ...], type_id: int, offset: int) -> bytes:
    return string(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, type_id, offset)


def assemble(pairs: list[bytes], tensors: list[bytes], data: bytes = b"", version: int = 3, align: int = 32) -> bytes:
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs + tensors)
    return header + bytes(-len(header) % align) + data


ARCH = pair("general.architecture", STRING, string("tiny"))
SMALL = assemble(
    [
        ARCH,
        pair("tiny.width", U32, struct.pack("<I", 3)),
        pair("tiny.eps", F32, struct.pack("<f", 0.5)),
        pair("tiny.on", BOOL, b"\1"),
        pair("tiny.flags", ARRAY, array(BOOL, 3, b"\0\1\2")),
        pair("tiny.heads", ARRAY, array(I32, 2, struct.pack("<2i", 4, -1))),
        pair("tiny.words", ARRAY, array(STRING, 3, string("▁a") + string("") + string(b"\xff"))),
        pair("tiny.nested", ARRAY, array(ARRAY, 2, array(U8, 1, b"\7") + array(STRING, 1, string("x")))),
        pair("tiny.none", ARRAY, array(U32, 0, b"")),
    ],
    [tensor("a", (3, 2), 0, 0), tensor("b", (32, 1, 2), 8, 32), tensor("c", (), 0, 128)],
    struct.pack("<6f", *range(6)) + bytes(8) + bytes(range(68)) + bytes(28) + struct.pack("<f", 9),
)


@pytest.fixture
def put(tmp_path: Path):
    def write(content: bytes, name: str = "x.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize("version", [2, 3])
def test_every_part_of_a_small_file(put, version: int) -> None:
    content = SMALL[:4] + struct.pack("<I", version) + SMALL[8:]
    with read_gguf(put(content)) as file:
        assert (file.version, file.alignment, file.size) == (version, 32, len(content))
        assert file.data_offset == len(content) - 132
        assert file.header_sha256() == hashlib.sha256(content[: file.data_offset]).hexdigest()

        assert file.metadata_value("general.architecture", str) == "tiny"
        assert file.metadata_value("tiny.width", int) == 3
        assert file.metadata_value("tiny.width", float) == 3.0
        assert file.metadata_value("tiny.eps", float) == 0.5
        assert file.metadata_value("tiny.on", bool) is True
        assert file.metadata_value("tiny.flags", np.ndarray).tolist() == [False, True, True]
        assert file.metadata_value("tiny.heads", np.ndarray).tolist() == [4, -1]
        assert file.metadata_value("tiny.words", tuple) == ("▁a", "", "\udcff")
        assert file.metadata_value("tiny.none", np.ndarray).size == 0
        numbers, words = file.metadata_value("tiny.nested", tuple)
        assert (numbers.tolist(), words) == ([7], ("x",))

        assert [(t.name, t.type.name, t.shape, t.nbytes) for t in file.tensors.values()] == [
            ("a", "f32", (2, 3), 24),
            ("b", "q8_0", (2, 1, 32), 68),
            ("c", "f32", (), 4),
        ]
        assert file.tensor_bytes("a").view("<f4").tolist() == [0, 1, 2, 3, 4, 5]
        assert file.tensor_bytes("b").tolist() == list(range(68))
        assert not file.tensor_bytes("b").flags.writeable


def test_views_outlive_the_file(put) -> None:
    with read_gguf(put(SMALL)) as file:
        view = file.tensor_bytes("b")
    assert view[67] == 67


def test_a_file_of_gguf_py_reads_back(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    scores = random.standard_normal(1000).astype(np.float32)
    tokens = [f"<{n}>" for n in range(1000)]
    weights = {
        "token_embd.weight": random.standard_normal((7, 64)).astype(np.float32),
        "blk.0.half": random.standard_normal((3, 5)).astype(np.float16),
        "blk.0.bytes": random.integers(-128, 128, 33, dtype=np.int8),
    }
    q8 = gguf.quants.quantize(weights["token_embd.weight"], gguf.GGMLQuantizationType.Q8_0)
    writer = gguf.GGUFWriter(tmp_path / "w.gguf", "tiny")
    writer.add_custom_alignment(64)
    writer.add_uint64("big", 2**64 - 1)
    writer.add_int8("small", -128)
    writer.add_float64("double", 0.1)
    writer.add_string("text", "Grüße, 世界\n")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores.tolist())
    for name, weight in weights.items():
        writer.add_tensor(name, weight)
    writer.add_tensor("q8", q8, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()

    file = read_gguf(tmp_path / "w.gguf")
    assert file.alignment == 64
    assert file.metadata_value("big", int) == 2**64 - 1
    assert file.metadata_value("small", int) == -128
    assert file.metadata_value("double", float) == 0.1
    assert file.metadata_value("text", str) == "Grüße, 世界\n"
    assert file.metadata_value("tokenizer.ggml.tokens", tuple) == tuple(tokens)
    np.testing.assert_array_equal(file.metadata_value("tokenizer.ggml.scores", np.ndarray), scores)
    assert file.tensors["q8"].shape == (7, 64)
    assert file.tensor_bytes("q8").tobytes() == q8.tobytes()
    for name, weight in weights.items():
        assert file.tensors[name].shape == weight.shape
        assert file.tensor_bytes(name).tobytes() == weight.tobytes()


@pytest.mark.parametrize(
    ("pairs", "tensors", "message"),
    [
        ([ARCH, ARCH], [], r"key 'general.architecture' is there twice"),
        ([], [tensor("a", (1,), 0, 0), tensor("a", (1,), 0, 32)], r"tensor 'a' is in the table twice"),
        ([], [tensor("a", (1, 1, 1, 1, 1), 0, 0)], r"tensor 'a' has 5 dimensions, the most is 4"),
        ([], [tensor("a", (2**32, 2**32), 0, 0)], r"tensor 'a': data past end of file: it ends at 73786976294838206"),
        (
            [],
            [tensor("a", (8,), 0, 0), tensor("b", (8,), 0, 96)],
            r"tensor 'b': data past end of file",
        ),
        ([], [tensor("a", (9,), 0, 0), tensor("b", (1,), 0, 32)], r"tensors 'a' and 'b' overlap"),
        ([], [tensor("a", (), 8, 0)], r"tensor 'a' of type q8_0 has rows of 1 elements"),
        ([], [tensor("n\n" * 500, (0,), 0, 0)], r"tensor '(n\\n){40}'\.\.\. \(1000 characters\) has the shape \(0,\)"),
    ],
)
def test_refusals_name_what_is_wrong(put, pairs: list[bytes], tensors: list[bytes], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_gguf(put(assemble(pairs, tensors, data=bytes(64))))
    assert str(caught.value).isprintable()


def test_metadata_value_says_what_is_there(put) -> None:
    file = read_gguf(put(SMALL))
    with pytest.raises(InputError, match=r"key 'tiny.widht' is missing; near: 'tiny.width'"):
        file.metadata_value("tiny.widht", int)
    with pytest.raises(InputError, match=r"key 'tiny.on' is a bool \(True\), but should be an integer"):
        file.metadata_value("tiny.on", int)
    with pytest.raises(InputError, match=r"key 'tiny.heads' is an array of 2 numbers \(int32\), but should be a float"):
        file.metadata_value("tiny.heads", float)
    with pytest.raises(InputError, match=r"there is no tensor 'd'"):
        file.tensor_bytes("d")


def test_what_is_no_file(tmp_path: Path, put) -> None:
    put(SMALL, "gemma-3-270m.gguf")
    with pytest.raises(InputError, match=r"no such file; near: 'gemma-3-270m.gguf'"):
        read_gguf(tmp_path / "gemma3-270m.gguf")
    with pytest.raises(InputError, match=r"no such file, nor the directory"):
        read_gguf(tmp_path / "nowhere" / "x.gguf")
    with pytest.raises(InputError, match=r"is a directory, not a GGUF file; near: 'gemma-3-270m.gguf'"):
        read_gguf(tmp_path)
    (tmp_path / "link.gguf").symlink_to("blobs/sha256-0")
    with pytest.raises(InputError, match=r"is a link to blobs/sha256-0, which does not exist"):
        read_gguf(tmp_path / "link.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(InputError, match=r"is a device or pipe"):
        read_gguf(tmp_path / "pipe.gguf")
    with pytest.raises(InputError, match=r"can't be read: .*null"):
        read_gguf("x\0.gguf")


@pytest.mark.parametrize(
    ("head", "look"),
    [
        (b"\x80\x02}q\x00", "pickle"),
        (b"\n <HTML><body>", "HTML"),
        (b"<?xml version='1.0'?><Error/>", "HTML"),
        (bytes(4096), "unfinished download"),
        (b'{"error":"not found"}', "JSON"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"fmgg\1\0\0\0", "old GGML"),
        (b"GG", r"begins with b'GG'"),
    ],
)
def test_what_a_file_looks_like_instead(put, head: bytes, look: str) -> None:
    with pytest.raises(InputError, match=f"not a GGUF file; .*{look}"):
        read_gguf(put(head))


TOO_LARGE = "makes the header larger than 96468992 bytes in memory, which no model needs"


@pytest.mark.parametrize(
    ("element", "count", "length", "message"),
    [
        (STRING, 8 << 20, 0, f"the length of key 'x' is 8388608, which {TOO_LARGE}"),
        (ARRAY, 300_000, 0, f"the length of key 'x' is 300000, which {TOO_LARGE}"),
        (U8, 150 << 20, 0, f"the length of key 'x' is 157286400, which {TOO_LARGE}"),
        (STRING, 4, 15 << 20, f"key 'x' {TOO_LARGE}"),
        (STRING, 3, 60 << 20, "string 0 in key 'x' has a length of 62914560 bytes, the most is 16777216"),
    ],
)
def test_a_header_larger_than_any_models_is_refused_soon(
    element: int, count: int, length: int, message: str, tmp_path: Path
) -> None:
    """What the file's size allows, but no model has: items of no length, and long ones, which begin with an emoji that
    makes Python hold them at four bytes a character."""
    path = tmp_path / "sparse.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair("x", ARRAY, array(element, count, b"")))
        if length:
            for _ in range(count):
                file.write(struct.pack("<Q", length) + "\U0001f600".encode())
                file.seek(length - 4, os.SEEK_CUR)
        file.truncate(200 << 20)
    tracemalloc.start()
    begin = time.process_time()
    try:
        with pytest.raises(InputError, match=f": {message}"):
            read_gguf(path)
        assert time.process_time() - begin < 1
        assert tracemalloc.get_traced_memory()[1] < 118 << 20
    finally:
        tracemalloc.stop()


def test_the_largest_vocabulary_of_today_is_read(tmp_path: Path) -> None:
    """Gemma 4's: 262,144 tokens and 514,906 merges, most of them in scripts that take three bytes a character."""
    path = tmp_path / "large.gguf"
    text = "\u0915\u093e\u0930 a".encode()
    lists = (("tokens", 262_144), ("merges", 514_906))
    keys = [
        pair(name, ARRAY, array(STRING, count, (struct.pack("<Q", len(text)) + text) * count)) for name, count in lists
    ]
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + b"".join(keys))
    with read_gguf(path) as file:
        assert [len(file.metadata_value(name, tuple)) for name, _ in lists] == [count for _, count in lists]


def edited(content: bytes, edits: list[tuple[int, bytes]], length: int) -> bytes:
    changed = bytearray(content)
    for place, new in edits:
        changed[place : place + len(new)] = new
    return bytes(changed[:length])


NUMBERS = st.sampled_from([0, 1, 3, 9, 31, 255, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1])
EDITS = st.tuples(
    st.integers(0, len(SMALL) - 1),
    st.binary(min_size=1, max_size=4) | NUMBERS.map(lambda n: struct.pack("<Q", n)) | st.just(b"\x09\0\0\0\x09\0\0\0"),
)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(EDITS, max_size=3), length=st.just(len(SMALL)) | st.integers(1, len(SMALL)))
def test_damaged_files_are_read_or_refused(tmp_path: Path, edits: list[tuple[int, bytes]], length: int) -> None:
    """Whatever happened to the bytes: a file whose every tensor can be read, or one printable line."""
    path = tmp_path / "damaged.gguf"
    path.write_bytes(edited(SMALL, edits, length))
    try:
        file = read_gguf(path)
    except GgufcError as error:
        assert str(error).isprintable()
        assert len(str(error)) < 2000
    else:
        with file:
            assert all(file.tensor_bytes(name).size == info.nbytes for name, info in file.tensors.items())
            assert repr(file)


def test_every_truncation_is_refused(put) -> None:
    for length in range(len(SMALL)):
        with pytest.raises(InputError):
            read_gguf(put(SMALL[:length]))


def test_types_are_those_of_ggml() -> None:
    """ggml itself is asked, as it is built into llama.cpp, for every id that it has."""
    ggml = ctypes.CDLL(xllamacpp.__file__)
    ggml.ggml_type_name.restype = ctypes.c_char_p
    ggml.ggml_blck_size.restype = ctypes.c_int64
    ggml.ggml_type_size.restype = ctypes.c_size_t
    theirs = {
        n: (ggml.ggml_type_name(n).decode().lower(), ggml.ggml_blck_size(n), ggml.ggml_type_size(n))
        for n in range(max(BY_ID) + 1)
        if ggml.ggml_type_size(n)
    }
    assert {t.id: (t.name, t.block_elements, t.block_bytes) for t in BY_ID.values()} == theirs


def test_types_are_those_of_gguf_py() -> None:
    theirs = {t.name.lower(): sizes for t, sizes in gguf.GGML_QUANT_SIZES.items()}
    # gguf-py 0.19 gives q8_1 two float32 in front; ggml's block, which no file has, has two float16.
    assert theirs.pop("q8_1") == (32, 40)
    ours = {name: (BY_NAME[name].block_elements, BY_NAME[name].block_bytes) for name in theirs}
    assert ours == theirs


def test_types_by_name_and_id() -> None:
    assert by_name("q4_k") is by_id(12) is BY_NAME["q4_k"]
    assert by_id(12).nbytes(512) == 288
    with pytest.raises(UnsupportedError, match=r"no type 'q4_m'; near: .*q4_"):
        by_name("q4_m")


def test_names_are_printed_safely() -> None:
    assert quoted("blk.0.attn_q.weight") == "'blk.0.attn_q.weight'"
    assert quoted("a'\n\x1b[2J\udcff\u202e") == '''"a'\\n\\x1b[2J\\udcff\\u202e"'''
    assert quoted("n" * 300).endswith("n'... (300 characters)")


@pytest.mark.slow
def test_the_real_file(real_model: Path) -> None:
    file = read_gguf(real_model)
    assert (file.version, file.alignment, file.data_offset, file.size) == (3, 32, 6525120, 253113024)
    assert file.metadata_value("gemma3.block_count", int) == 18
    assert file.metadata_value("tokenizer.ggml.add_bos_token", bool)
    tokens = file.metadata_value("tokenizer.ggml.tokens", tuple)
    assert (len(tokens), tokens[2], tokens[818]) == (262144, "<bos>", "The")
    assert file.metadata_value("tokenizer.ggml.token_type", np.ndarray).shape == (262144,)
    assert len(file.tensors) == 236
    embedding = file.tensors["token_embd.weight"]
    assert (embedding.type.name, embedding.shape, embedding.nbytes) == ("q8_0", (262144, 640), 178257920)
    last = max(file.tensors.values(), key=lambda info: info.offset)
    assert last.offset + last.nbytes == file.size


@pytest.mark.slow
def test_the_real_file_is_read_quickly(real_model: Path) -> None:
    """262,144 strings, as many scores and types: the fastest of five, in seconds of the processor."""

    def seconds() -> float:
        begin = time.process_time()
        read_gguf(real_model).close()
        return time.process_time() - begin

    assert min(seconds() for _ in range(5)) < 0.4


@pytest.mark.parametrize(("element", "what"), [(BOOL, "'x.y'"), (F32, "'x.y'")])
def test_a_huge_array_of_numbers_is_refused_unread(element: int, what: str, tmp_path: Path) -> None:
    """The file is as long as it says, and holds nothing: a few kilobytes on disk."""
    path = tmp_path / "sparse.gguf"
    path.write_bytes(assemble([ARCH, pair("x.y", ARRAY, array(element, 1_000_000_000, b""))], []))
    os.truncate(path, 5_000_000_000)
    tracemalloc.start()
    with pytest.raises(InputError, match=what):
        read_gguf(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_table_longer_than_any_models_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "many.gguf"
    path.write_bytes(assemble([ARCH], [tensor(f"t{n}", (8,), 0, 32 * n) for n in range(70_000)], bytes(32 * 70_000)))
    with pytest.raises(InputError, match="70000 tensors, which is more than 65536"):
        read_gguf(path)
