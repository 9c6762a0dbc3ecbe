"""Public fault reports as files: malformed, hostile or odd GGUF, each read or refused as the case says.

Only the reader is judged: what needs the model's definition (a missing architecture, a weight of integers) is found
by the stages after it.
"""

import json
import re
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import pytest
from ggufc.frontend.errors import GgufcError
from ggufc.frontend.gguf.file import GgufFile
from ggufc.frontend.gguf.reader import read_gguf

CASES = Path(__file__).resolve().parents[2].parent / "shared" / "cases"
NUMBERS = ("01", "03", "05", "07", "11", "23", "26")
if not CASES.is_dir():
    pytest.skip("the collection of cases is not beside the repository", allow_module_level=True)
FOLDERS = {folder.name[:2]: folder for folder in sorted(CASES.iterdir()) if folder.name[:2] in (*NUMBERS, "09")}

# Sound containers that a later stage refuses, and why the reader does not.
LATER = {
    "03/no-kv-no-tensor.gguf": "a header without keys is well formed; the model builder misses general.architecture",
    "26/type-024.gguf": "an i8 tensor is sound; that a weight may not have it is the model builder's rule",
    "26/type-025.gguf": "as type-024, for i16",
    "26/type-026.gguf": "as type-024, for i32",
    "26/type-027.gguf": "as type-024, for i64",
    "26/type-028.gguf": "as type-024, for f64",
}

# What a refusal must name; the first pattern that fits the file.
NAMED = (
    ("01/bad-2p30-short", r"tensor 'token_embd.weight': data past end of file"),
    ("01/bad-2p31", r"key 'general.alignment' .*2147483648"),
    ("01/bad-0", r"key 'general.alignment' .*\(0\)"),
    ("01/odd-24", r"key 'general.alignment' .*\(24\)"),
    ("01/", r"key 'general.alignment' "),
    ("03/kvcount", r"the key count is \d+"),
    ("03/tcount", r"the tensor count is \d+"),
    ("03/key-len", r"the name of key 1 has a length of \d+"),
    ("03/str-len", r"key 'general.name' has a length of \d+"),
    ("03/arr|03/nest|03/.type", r"key 'a.b' "),
    ("03/tname", r"the name of tensor 0 has a length of \d+"),
    ("03/magic-only", r"cut off.* the version"),
    ("03/header-23", r"cut off.* the key count"),
    (".*empty.gguf", r"is empty"),
    ("05/zero-extra", r"tensor 'x.zero' has the shape \(0, 5\)"),
    ("05/zero-needed-2d", r"tensor 'blk.0.attn_q.weight' has the shape \(0, 32\)"),
    ("05/zero-needed", r"tensor 'blk.0.ffn_norm.weight' has the shape \(0,\)"),
    ("05/empty-tensor-name", r"the name of tensor 12 is empty"),
    ("05/key-empty", r"the name of key 20 is empty"),
    ("07/cut-at-000(024|100)|07/cut-at-003904", r"header is cut off"),
    (
        "07/cut-at-00780",
        r"tensor 'token_embd.weight': data past end of file: it ends at 44928, .* at 780[789]",
    ),
    ("07/cut-at-053504", r"tensor 'output.weight': data past end of file: it ends at 82176, but the file at 53504"),
    ("07/cut-at", r"tensor 'blk.0.ffn_down.weight': data past end of file: it ends at 107008, but the file at \d+"),
    ("07/off-misaligned", r"tensor 'blk.0.attn_k.weight' is misaligned"),
    ("07/off-overlap|07/off-all-zero", r"tensors 'token_embd.weight' and '.*' overlap"),
    ("07/off-", r"tensor 'blk.0.attn_k.weight': data past end of file"),
    ("11/a-directory", r"is a directory"),
    ("11/ggjt", r"old GGML file"),
    ("11/html", r"HTML page"),
    ("11/lfs", r"git-lfs pointer"),
    ("11/reversed", r"reversed"),
    ("11/safetensors", r"safetensors"),
    ("11/zip", r"zip archive"),
    ("11/v3-bigendian", r"big-endian GGUF"),
    (r"11/v0", "GGUF version 0"),
    (r"11/v1", "GGUF version 1"),
    (r"11/v4", "GGUF version 4"),
    (r"11/v255", "GGUF version 255"),
    (
        "23/bad-extra-(q4_k|q8_0|mxfp4)",
        r"tensor 'x.extra.weight' of type \w+ has rows of (128|896|16|48) ",
    ),
    ("23/bad-needed", r"tensor 'blk.0.attn_q.weight' of type \w+ has rows of 32 "),
    ("26/type-042", r"tensor 'blk.0.attn_q.weight' of type q2_0 has rows of 32 "),
    ("26/type-015", r"tensor 'blk.0.ffn_down.weight': type id 15 \(q8_k\)"),
    ("26/type-2p31", r"tensor 'blk.0.attn_q.weight': type id 2147483648 "),
    ("26/type-009", r"tensor 'blk.0.attn_q.weight': type id 9 \(q8_1\)"),
    ("26/", r"tensor 'blk.0.attn_q.weight': type id \d+ "),
)


def verdict_of(facts: dict[str, Any]) -> str:
    """refuse, load or load|refuse: the case's word for ggufc, else what llama.cpp does (where it crashed: either)."""
    if "ggufc" in facts:
        return facts["ggufc"]
    llama = facts["llama_cpp"]
    return {"ok": "load", "refused": "refuse"}[llama["load"]] if isinstance(llama, dict) else "load|refuse"


def expected() -> list[Any]:
    """(case, file, verdict, whether gguf-py reads it) for every file."""
    return [
        pytest.param(number, name, verdict_of(facts), facts.get("gguf_py_0_19", "ok") == "ok", id=f"{number}/{name}")
        for number in NUMBERS
        for name, facts in json.loads((FOLDERS[number] / "expect.json").read_text())["files"].items()
    ]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory):
    """The folder with a case's files, made on first use."""
    made: dict[str, Path] = {}

    def folder(number: str) -> Path:
        if number not in made:
            script = FOLDERS[number] / "make.py"
            made[number] = tmp_path_factory.mktemp(number) if script.exists() else FOLDERS[number] / "input"
            if script.exists():
                subprocess.run([sys.executable, str(script), str(made[number])], check=True, timeout=60)
        return made[number]

    return folder


def read_bounded(path: Path) -> GgufFile | GgufcError:
    """The file or its refusal, within a second and 64 MB."""
    tracemalloc.start()
    begin = time.process_time()
    try:
        return read_gguf(path)
    except GgufcError as error:
        return error
    finally:
        seconds, (_, peak) = time.process_time() - begin, tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert seconds < 1
        assert peak < 64 << 20


@pytest.mark.parametrize(("number", "name", "verdict", "readable"), expected())
def test_the_reader_does_as_the_case_says(files, number: str, name: str, verdict: str, readable: bool) -> None:
    key = f"{number}/{name}"
    path = files(number) / name
    result = read_bounded(path)
    if isinstance(result, GgufcError):
        assert "refuse" in verdict
        assert str(result).isprintable()
        wanted = next(words for file, words in NAMED if re.match(file, key))
        assert re.search(wanted, str(result))
        return
    assert "load" in verdict or key in LATER
    if not readable:
        return
    theirs = gguf.GGUFReader(path)
    assert list(result.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        assert result.tensor_bytes(tensor.name).tobytes() == tensor.data.tobytes()


def test_table_of_later_stages_is_true(files) -> None:
    for key in LATER:
        number, name = key.split("/")
        assert isinstance(read_bounded(files(number) / name), GgufFile)


def test_special_ids_come_through_as_they_are(files) -> None:
    """Case 09: an id outside the vocabulary is the tokenizer's to judge, so the reader may not bend it."""
    values = {"nv": 290, "max": 2**32 - 1, "neg": -1, "i64": 2**40}
    names = ("bos_token_id", "eos_token_id", "unknown_token_id", "eot_token_id", "padding_token_id")
    for name in names:
        for tag, value in values.items():
            file = read_gguf(files("09") / f"{name}-{tag}.gguf")
            assert file.metadata_value(f"tokenizer.ggml.{name}", int) == value
    silent = read_gguf(files("09") / "no-ids.gguf").metadata
    assert not {f"tokenizer.ggml.{name}" for name in names} & set(silent)


def test_odd_names_come_through_whole(files) -> None:
    """Case 05: no name is cut, cleaned or merged with another."""
    odd = {
        "name-300": ["n" * 300],
        "name-64-clash": ["n" * 63 + "a", "n" * 63 + "b"],
        "name-slash": ["x/../../../tmp/evil.weight"],
        "name-nul": ["x\0y.weight"],
        "name-newline": ["x\n} module {\n.weight"],
        "name-quote": ['x"y\\z.weight'],
        "name-badutf8": ["\udcff\udcfe.weight"],
    }
    for file, names in odd.items():
        assert list(read_gguf(files("05") / f"{file}.gguf").tensors)[12:] == names
