"""A bundle runs without ggufc: its manifest alone drives a plain reader, and a C program on IREE's runtime."""

import ctypes
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import ggufc
import pytest
from ggufc.backends.host.machine import known_features, this_machine
from hypothesis import given
from hypothesis import strategies as st

from ...tiny_models import Sizes, tiny_model
from ..conftest import TinyCase

EXAMPLES = Path(__file__).parents[3] / "examples"
PROMPT, STEPS = [3 + n % 40 for n in range(21)], 24
"""Longer than the models' windows, so that rings turn."""


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose caches are blocks, some of them of a window, and whose convolutions have a state."""
    folder = tmp_path_factory.mktemp("states")
    sizes = Sizes(layers=2, heads=2, kv_heads=2, head_dim=32)
    model = tiny_model(folder / "m.gguf", "lfm2", sizes, window=8, types={"*": "q8_0"})
    return ggufc.export(model, folder / "lfm2", kv="q8_0").path


def tokens_of_ggufc(bundle: Path) -> list[int]:
    session = ggufc.load(bundle, threads=1)
    stops = json.loads((bundle / "manifest.json").read_text())["tokenizer"]["stop_tokens"]
    token, found = int(session.prefill(PROMPT).argmax()), []
    while len(found) < STEPS and token not in stops:
        found.append(token)
        token = session.decode_greedy(token)
    assert len(found) > 4
    return found


def tokens_of(command: Sequence[str | Path], bundle: Path) -> list[int]:
    run = subprocess.run([*command, bundle, str(STEPS), *map(str, PROMPT)], capture_output=True, text=True, check=False)
    assert not run.returncode, run.stderr
    return [int(line) for line in run.stdout.split()]


@pytest.mark.slow
def test_a_reader_in_plain_python_gives_the_same_tokens(tiny_quantized: TinyCase, states: Path) -> None:
    reader = EXAMPLES / "plain.py"
    assert "ggufc" not in [line.split()[1] for line in reader.read_text().splitlines() if line.startswith("import ")]
    for bundle in (tiny_quantized.bundle.path, states):
        assert tokens_of([sys.executable, reader], bundle) == tokens_of_ggufc(bundle)


@pytest.fixture(scope="module")
def compiler() -> str:
    """The C compiler."""
    return shutil.which("cc") or pytest.skip("there is no C compiler")


@pytest.fixture(scope="module")
def program(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program, where cmake finds IREE's runtime: installed, or in a build folder that `IREERuntime_DIR` names."""
    cmake = shutil.which("cmake") or pytest.skip("there is no cmake")
    folder = tmp_path_factory.mktemp("c")
    for command in ([cmake, "-S", EXAMPLES / "c", "-B", folder], [cmake, "--build", folder]):
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if "IREERuntimeConfig.cmake" in run.stderr and command[1] == "-S":
            pytest.skip("cmake finds no IREE runtime; IREERuntime_DIR names the folder of its IREERuntimeConfig.cmake")
        assert not run.returncode, run.stderr
    return folder / "generate"


@pytest.mark.slow
@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_a_c_program_gives_the_same_tokens(
    device: str, program: Path, tiny_f32: TinyCase, tiny_quantized: TinyCase, states: Path
) -> None:
    for bundle in (tiny_f32.bundle.path, tiny_quantized.bundle.path, states):
        assert tokens_of([program, "--device", device], bundle) == tokens_of_ggufc(bundle)


@pytest.mark.slow
def test_the_c_program_refuses_what_it_cant_run(program: Path, tiny_f32: TinyCase, tmp_path: Path) -> None:
    bundle = shutil.copytree(tiny_f32.bundle.path, tmp_path / "bundle", symlinks=True)

    def said(*words: str) -> str:
        run = subprocess.run([program, *words], capture_output=True, text=True, check=False)
        assert run.returncode in (1, 2) and not run.stdout
        return run.stderr

    assert "manifest.json: can't be read" in said(str(tmp_path), "1", "2")
    assert "token 999999 is outside the vocabulary" in said(str(bundle), "1", "999999")
    assert "don't fit the context" in said(str(bundle), "99999999", "2")
    assert "no module for the target riscv64" in said(str(bundle), "1", "2", "--target", "riscv64")
    (bundle / "model.gguf").unlink()
    (bundle / "model.gguf").write_bytes(tiny_f32.path.read_bytes()[:-1])
    assert "not the file that was exported" in said(str(bundle), "1", "2")


@pytest.mark.slow
def test_the_c_program_takes_the_target_that_this_machine_can_run(
    program: Path, tiny_f32: TinyCase, tmp_path: Path
) -> None:
    bundle = shutil.copytree(tiny_f32.bundle.path, tmp_path / "bundle", symlinks=True)
    manifest = json.loads((bundle / "manifest.json").read_text())
    alien = {"file": "alien.vmfb", "triple": "riscv64-none-elf", "cpu": "generic", "features": []}
    sparse = {**manifest["targets"]["host"], "file": "sparse.vmfb", "features": []}
    demanding = {**sparse, "file": "demanding.vmfb", "features": [*manifest["targets"]["host"]["features"], "+avx999"]}
    for others in ({"a": alien}, {"a": sparse}, {"a": demanding}):
        (bundle / "manifest.json").write_text(json.dumps(manifest | {"targets": others | manifest["targets"]}))
        assert tokens_of([program], bundle) == tokens_of_ggufc(tiny_f32.bundle.path)
    (bundle / "manifest.json").write_text(json.dumps(manifest | {"targets": {"a": alien}}))
    run = subprocess.run([program, bundle, "1", "2"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (2, "")
    assert "no module that this machine can run; --target names one all the same" in run.stderr


def test_the_c_program_knows_what_this_processor_has(compiler: str, tmp_path: Path) -> None:
    library = tmp_path / "machine.so"
    warnings = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, "-shared", "-fPIC", *warnings, EXAMPLES / "c" / "machine.c", "-o", library], check=True)
    machine = ctypes.CDLL(str(library))
    machine.machine_has.restype = machine.machine_is.restype = ctypes.c_bool
    here = this_machine()
    assert machine.machine_is(f"{here.arch}-none-elf".encode()) and not machine.machine_is(b"x86-none-elf")
    if here.features is None:
        pytest.skip("this system doesn't say what its processor has")
    for feature in sorted(known_features(here.arch)):
        if feature.startswith(("avx", "fma", "gfni", "neon", "dotprod", "i8mm")):
            assert machine.machine_has(f"+{feature}".encode()) == (feature in here.features), feature
    assert machine.machine_has(b"-avx2") and machine.machine_has(b"+no-vectors") and not machine.machine_has(b"+avx999")


@pytest.fixture(scope="module")
def json_c(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The C program's reader of JSON."""
    library = tmp_path_factory.mktemp("json") / "json.so"
    warnings = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, "-shared", "-fPIC", *warnings, EXAMPLES / "c" / "json.c", "-o", library], check=True)
    found = ctypes.CDLL(str(library))
    for name in ("json_parse", "json_first", "json_next", "json_value", "json_get"):
        getattr(found, name).restype = ctypes.c_void_p
    for name in ("json_first", "json_next", "json_value", "json_count", "json_whole"):
        getattr(found, name).argtypes = [ctypes.c_void_p]
    found.json_get.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    found.json_string.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    found.json_string.restype = ctypes.c_bool
    found.json_count.restype, found.json_whole.restype = ctypes.c_size_t, ctypes.c_int64
    return found


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2**63 - 10) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
)


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_json_is_read_as_python_reads_it(json_c: ctypes.CDLL, value: object, ascii_: bool, indent: int | None) -> None:
    text = ctypes.create_string_buffer(json.dumps(value, ensure_ascii=ascii_, indent=indent).encode())
    assert read(json_c, json_c.json_parse(text)) == normal(value)


def normal(value: object) -> object:
    """What the C reader tells apart of a value: null, true and false are nothing to it."""
    if isinstance(value, list):
        return [normal(item) for item in value]
    if isinstance(value, dict):
        return [(key, normal(item)) for key, item in value.items()]
    return value if isinstance(value, str) or type(value) is int else None


def read(json_c: ctypes.CDLL, at: int) -> object:
    """A value by the C reader's functions; an object is a list of pairs."""
    text = ctypes.create_string_buffer(256)
    first = ctypes.string_at(at, 1)
    if first == b'"':
        assert json_c.json_string(at, text, len(text))
        return text.value.decode()
    if first in (b"[", b"{"):
        found, item = [], json_c.json_first(at)
        while item:
            key = read(json_c, item)
            found.append((key, read(json_c, json_c.json_value(item))) if first == b"{" else key)
            item = json_c.json_next(item)
        assert len(found) == json_c.json_count(at)
        return found
    number = json_c.json_whole(at)
    return None if number < 0 else number


@given(st.text('[]{}",:\\ua1 0\n', max_size=24))
def test_damaged_json_ends(json_c: ctypes.CDLL, text: str) -> None:
    """Whatever stands there, each function comes to an end within the text."""
    kept = ctypes.create_string_buffer(text.encode())
    root = json_c.json_parse(kept)
    item, seen = json_c.json_first(root), 0
    while item:
        assert ctypes.addressof(kept) < item < ctypes.addressof(kept) + len(kept)
        json_c.json_value(item)
        item, seen = json_c.json_next(item), seen + 1
        assert seen <= len(text)
    json_c.json_get(root, b"a")
