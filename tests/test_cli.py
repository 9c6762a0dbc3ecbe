"""The command line as a user meets it: results, exit codes, and one line for whatever goes wrong."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ggufc.cli import main

from .tiny_models import ARCHITECTURES, Sizes, tiny_gemma3, tiny_model
from .tiny_models.variants import ENCODERS
from .tiny_models.writer import write_gguf

Damage = Callable[[bytes], bytes]


def ggufc(*words: str | Path | int, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], input=stdin)


def process(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "ggufc", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def one_line(stderr: str) -> str:
    """What was said, after checking that it is one line of the form of every error."""
    assert stderr.startswith("ggufc: error: "), stderr
    assert stderr.count("\n") == 1, stderr
    return stderr.removeprefix("ggufc: error: ")


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory, tiny_gemma3_path: Path) -> Path:
    """A bundle of a tiny model, written by the command."""
    folder = tmp_path_factory.mktemp("bundles") / "gemma3"
    done = ggufc("export", tiny_gemma3_path, "-o", folder, "--json")
    assert done.exit_code == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["architecture"] == "gemma3"
    assert made["files"] == {p.name: p.stat().st_size for p in folder.iterdir() if not p.is_symlink()}
    return folder


def test_alone_it_says_what_to_try_first() -> None:
    done = ggufc()
    assert done.exit_code == 0
    assert "ggufc export" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("rum",),
        ("run",),
        ("run", "MODEL", "hi", "--loud"),
        ("run", "MODEL", "hi", "-n", "many"),
        ("run", "MODEL", "hi", "--prompt-ids", "1"),
        ("run", "MODEL", "--prompt-ids", "1,two"),
        ("run", "MODEL", "--prompt-ids", "1,99999"),
        ("run", "MODEL", "--prompt-ids", ","),
        ("run", "MODEL", "--temperature", "nan", "hi"),
        ("run", "MODEL", "--temperature", "inf", "hi"),
        ("run", "MODEL", "--threads", "1025", "hi"),
        ("run", "MODEL", "--exact", "hi"),
        ("run", "MODEL", "--file", "/nowhere/prompt.txt"),
        ("run", "MODEL"),
        ("bench", "MODEL", "-p", "5000"),
        ("inspect", "MODEL", "--archdefs", "/nowhere"),
    ],
)
def test_wrong_words_are_refused_in_one_line(words: tuple[str, ...], bundle: Path) -> None:
    done = ggufc(*(bundle if word == "MODEL" else word for word in words))
    assert done.exit_code == 2
    one_line(done.stderr)
    assert done.stdout == ""


# How a sound model is damaged, the exit code, and a word of what is said.
DAMAGES: dict[str, tuple[Damage, int, str]] = {
    "empty": (lambda raw: b"", 2, "empty"),
    "no GGUF": (lambda raw: b"<html>" + raw, 2, "HTML"),
    "cut in the header": (lambda raw: raw[:100], 2, ""),
    "cut in the tensor table": (lambda raw: raw[:12_000], 2, ""),
    "cut in the data": (lambda raw: raw[:-1000], 2, ""),
    "2^60 tensors": (lambda raw: raw[:8] + (1 << 60).to_bytes(8, "little") + raw[16:], 2, ""),
    "a missing key": (lambda raw: raw.replace(b"gemma3.block_count", b"gemma3.block_kount"), 2, "gemma3.block_count"),
    "another width": (lambda raw: _replaced_u32(raw, b"gemma3.embedding_length", 32), 2, "64"),
    "unknown architecture": (lambda raw: raw.replace(b"gemma3", b"gemmaX"), 3, "gemmaX"),
}


def _replaced_u32(raw: bytes, key: bytes, value: int) -> bytes:
    at = raw.index(key) + len(key) + 4
    return raw[:at] + value.to_bytes(4, "little") + raw[at + 4 :]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("command", ["export", "run", "inspect"])
def test_a_bad_model_is_refused_in_one_line_and_nothing_is_written(
    command: str, damage: str, tiny_gemma3_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    change, code, said = DAMAGES[damage]
    model = tmp_path / "model.gguf"
    model.write_bytes(change(tiny_gemma3_path.read_bytes()))
    more = {"export": ["-o", tmp_path / "out"], "run": ["hi"], "inspect": []}[command]
    done = ggufc(command, model, *more)
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in one_line(done.stderr)
    assert list(tmp_path.iterdir()) == [model]


def test_a_bad_header_costs_no_time_and_no_compiler(tiny_gemma3_path: Path, tmp_path: Path) -> None:
    model = tmp_path / "cut.gguf"
    model.write_bytes(tiny_gemma3_path.read_bytes()[:500])
    words = ["export", str(model), "-o", str(tmp_path / "out")]
    code = f"""
import sys
from ggufc.cli import main
try:
    main({words!r})
finally:
    print(sorted(sys.modules.keys() & {{"jax", "iree.compiler", "gguf"}}))
"""
    before = os.times()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 5
    assert (done.returncode, done.stdout) == (2, "[]\n")
    one_line(done.stderr)


def test_running_a_bundle_imports_nothing_of_the_compiler(bundle: Path) -> None:
    words = ["run", str(bundle), "an", "-n", "1"]
    code = f"""
import sys
from ggufc.cli import main
try:
    main({words!r})
finally:
    print(sorted(sys.modules.keys() & {{"jax", "llvmlite", "iree.compiler", "gguf", "ggufc.passes"}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "[]"), done.stderr


@pytest.mark.parametrize("place", ["/proc/nothing", "/dev/null/out", "FILE", "FILE/x/y", "FOLDER"])
def test_an_output_that_cannot_be_is_refused(place: str, tiny_gemma3_path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "letter").write_text("mine")
    output = Path(place.replace("FILE", str(tmp_path / "file")).replace("FOLDER", str(tmp_path / "folder")))
    done = ggufc("export", tiny_gemma3_path, "-o", output)
    assert done.exit_code == 2
    assert str(output) in one_line(done.stderr)
    assert place != "FILE/x/y" or f"{tmp_path / 'file'} is no folder" in done.stderr
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "letter").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.slow
def test_a_full_disk_leaves_nothing(tiny_gemma3_path: Path, tmp_path: Path) -> None:
    limited = f'ulimit -f 8; exec "{sys.executable}" -m ggufc export "$0" -o "$1"'
    command = ["bash", "-c", limited, str(tiny_gemma3_path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "File too large" in one_line(done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_run_prints_json(bundle: Path) -> None:
    found = json.loads(ggufc("run", bundle, "the an", "-n", 4, "--json").stdout)
    assert found["prompt_tokens"] > 1
    assert len(found["tokens"]) == 4
    assert found["stop"] == "length"
    assert set(found["timings"]) == {"load_s", "prefill_tok_s", "decode_tok_s"}


def test_the_prompt_comes_from_words_a_file_or_standard_input(bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("the an\n")
    given = [ggufc("run", bundle, "the an", "-n", 5), ggufc("run", bundle, "-f", file, "-n", 5)]
    given.append(ggufc("run", bundle, "-n", 5, stdin="the an\n"))
    assert [done.exit_code for done in given] == [0, 0, 0]
    assert len({done.stdout for done in given}) == 1


def test_ids_are_fed_as_they_are(bundle: Path) -> None:
    found = json.loads(ggufc("run", bundle, "--prompt-ids", "2,300,301", "-n", 2, "--json").stdout)
    assert found["prompt_tokens"] == 3


def test_a_seed_repeats(bundle: Path) -> None:
    def tokens(seed: int) -> list[int]:
        words = ("run", bundle, "the", "-n", 12, "--temperature", 2, "--seed", seed, "--json")
        return json.loads(ggufc(*words).stdout)["tokens"]

    assert tokens(1) == tokens(1) != tokens(2)


def test_inspect_counts_the_caches(tiny_gemma3_path: Path) -> None:
    found = json.loads(ggufc("inspect", tiny_gemma3_path, "--kv", "f16", "--json").stdout)
    row = 2 * 2 * 32 * 2  # keys and values, kv_heads, head_dim, bytes
    assert found["layers"] == {"local": 6, "global": 1}
    assert found["cache"]["bytes_per_token"] == 7 * row
    assert found["cache"]["bytes_per_token_past_windows"] == row


def test_inspect_tells_nothing_of_tokens_that_an_encoder_never_decodes(tmp_path: Path, tiny_gemma3_path: Path) -> None:
    shown = ggufc("inspect", ENCODERS["bert"].write(tmp_path / "bert.gguf")).stdout
    assert "cache" not in shown and "per token" not in shown and "vocabulary" in shown
    assert " \n" not in shown
    assert "f32 cache" in ggufc("inspect", tiny_gemma3_path).stdout


@pytest.mark.parametrize("name", ["prefill", "decode", "forward"])
def test_inspect_prints_a_graph_that_parses(name: str, bundle: Path) -> None:
    from ggufc.graph.text import parse_graph

    assert parse_graph(ggufc("inspect", bundle, "--graph", name).stdout).name == name


def test_debug_shows_where_an_error_arose(tmp_path: Path) -> None:
    for words in (("--debug", "inspect", tmp_path / "no"), ("inspect", tmp_path / "no", "--debug")):
        done = ggufc(*words)
        assert done.exit_code == 2
        assert "Traceback" in done.stderr


def test_a_fault_of_ggufc_is_one_line_too(monkeypatch: pytest.MonkeyPatch, tiny_gemma3_path: Path) -> None:
    def broken(*_: object, **__: object) -> None:
        raise AssertionError("a\nb")

    monkeypatch.setattr("ggufc.graph.model.open_model", broken)
    done = ggufc("inspect", tiny_gemma3_path)
    assert done.exit_code == 70
    assert "a fault of ggufc" in one_line(done.stderr)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory", "m.gguf"),
        ImportError("libx.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
    ],
)
def test_a_lack_of_memory_has_its_own_exit_code(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tiny_gemma3_path: Path
) -> None:
    def full(*_: object, **__: object) -> None:
        try:
            raise error
        except ImportError as cause:  # as packages tell of their native modules
            raise ImportError("see our page\non installing") from cause

    monkeypatch.setattr("ggufc.graph.model.open_model", full)
    done = ggufc("inspect", tiny_gemma3_path)
    assert (done.exit_code, one_line(done.stderr)) == (71, "out of memory\n")


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_as_dev_null(closed: str, bundle: Path) -> None:
    def ended(*words: str | Path) -> subprocess.CompletedProcess[str]:
        command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "ggufc", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    done = ended("run", bundle, "the", "-n", "2")
    assert done.returncode == 0, done.stderr
    assert bool(done.stdout) == (">&-" not in closed.replace("2>&-", "").split())
    assert "error" not in done.stderr
    assert ended("run", bundle / "nowhere", "the").returncode == 2
    if "<&-" in closed.split():
        assert ended("run", bundle).returncode == 2  # no prompt


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGTERM, "terminated"), (signal.SIGHUP, "the terminal was closed")]
)
def test_a_termination_leaves_nothing(
    number: signal.Signals, said: str, tiny_gemma3_path: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "ggufc", "export", str(tiny_gemma3_path), "-o", str(tmp_path / "out")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        while not list(tmp_path.iterdir()):  # its temporary folder
            time.sleep(0.01)
        child.send_signal(number)
        child.send_signal(number)
        _, heard = child.communicate(timeout=60)
    assert (child.returncode, heard) == (128 + number, f"ggufc: error: {said}\n")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_the_command_itself_is_imported_is_one_line() -> None:
    code = """
import os, signal, sys
import ggufc.__main__ as entry
class Interrupt:
    def find_spec(self, name, *_):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
entry.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, one_line(done.stderr)) == (130, "", "interrupted\n")


def test_an_interrupt_that_a_library_makes_an_error_of_its_own_is_one_line(tiny_gemma3_path: Path) -> None:
    """As MLIR's bindings do, which call Python for each operation of a module."""
    code = f"""
import os, signal
import ggufc.backends.bundles.source as source
def interrupted(*_):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        raise RuntimeError("Exception raised in callback")
source.located = interrupted
from ggufc.cli import main
main(["inspect", {str(tiny_gemma3_path)!r}])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, one_line(done.stderr)) == (130, "", "interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.4, 1.2])
def test_an_interrupt_while_xla_works_is_one_line(seconds: float, tiny_gemma3_path: Path) -> None:
    """Its threads go on, and crash when the interpreter is taken down under them."""
    command = [sys.executable, "-m", "ggufc", "run", str(tiny_gemma3_path), "--prompt-ids", "1,5", "--backend", "xla"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        while child.poll() is None and "libjax_common" not in Path(f"/proc/{child.pid}/maps").read_text():
            time.sleep(0.01)
        time.sleep(seconds)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    assert (child.returncode, one_line(said)) == (130, "interrupted\n")


def test_a_hangup_that_nohup_ignores_stays_ignored(bundle: Path) -> None:
    code = f"""
import os, signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
import ggufc.backends.sessions.session as session
feed = session.Session._feed
def feed_and_hang_up(*words):
    os.kill(os.getpid(), signal.SIGHUP)
    return feed(*words)
session.Session._feed = feed_and_hang_up
from ggufc.cli import main
main(["run", {str(bundle)!r}, "the", "-n", "2"])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_a_closed_pipe_is_quiet(tiny_gemma3_path: Path) -> None:
    command = [sys.executable, "-m", "ggufc", "inspect", str(tiny_gemma3_path), "--graph", "prefill"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout and child.stderr
        child.stdout.close()
        assert child.stderr.read() == b""


@pytest.mark.slow
def test_odd_paths_are_paths(tmp_path: Path) -> None:
    folder = tmp_path / "ä %s,#=日本 '\n"
    folder.mkdir()
    model = tiny_gemma3(folder / f"-m o?:{'w' * 190}.gguf", layers=1)
    odd = dict.fromkeys(("TMPDIR", "HOME", "XDG_CACHE_HOME", "OLLAMA_MODELS", "HF_HUB_CACHE"), str(folder))
    options = {"cwd": folder, "env": {**os.environ, **odd, "LC_ALL": "C", "PYTHONUTF8": "0"}}
    done = process("export", "-o", "-out", "--", model.name, **options)
    assert done.returncode == 0, done.stderr
    (folder / "org").mkdir()
    (folder / "org" / "repo").symlink_to(model)
    texts = set()
    for name in ("-out", "./-out/", model.name, model, "org/repo"):
        ran = process("run", "-n", "2", "--json", "--", str(name), "the", **options)
        assert ran.returncode == 0, ran.stderr
        texts.add(json.loads(ran.stdout)["text"])
    assert len(texts) == 1
    found = json.loads(process("status", "--json", **options).stdout)["models"]
    assert {entry["name"] for entry in found} == {"-out/", model.name}


@pytest.mark.slow
def test_verify_holds_every_executor_against_the_reference(bundle: Path) -> None:
    done = ggufc("verify", bundle, "--against", "llama.cpp", "--json")
    report = json.loads(done.stdout)
    assert done.exit_code == 0 and report["ok"], report
    assert {row["executor"] for row in report["rows"]} == {"native", "iree", "xla", "llama.cpp"}
    assert {row["fed"] for row in report["rows"]} == {"text"}


@pytest.mark.slow
def test_bench_measures_both(bundle: Path) -> None:
    done = ggufc("bench", bundle, "-p", 16, "-n", 4, "-r", 1, "--threads", 1, "--against", "llama.cpp", "--json")
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    figures = ("prefill_tok_s", "decode_tok_s", "decode_gb_s", "load_ms", "peak_rss_mb")
    assert all(report[name] > 0 and report["llama.cpp"][name] > 0 for name in figures)
    assert report["ratio"]["decode"] == pytest.approx(report["decode_tok_s"] / report["llama.cpp"]["decode_tok_s"])
    assert report["bandwidth_fraction"] == pytest.approx(report["decode_gb_s"] / report["bandwidth_gb_s"])


@pytest.mark.parametrize("command", ["run", "inspect", "verify", "bench"])
def test_every_command_that_takes_a_bundle_takes_its_weights(command: str, bundle: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(bundle, moved, symlinks=True)
    (moved / "model.gguf").unlink()
    more = ["hi"] if command == "run" else []
    done = ggufc(command, moved, *more)
    assert done.exit_code == 2
    assert "--weights-file FILE" in one_line(done.stderr)
    assert "--weights-file" in ggufc(command, "--help").stdout
    if command in ("run", "inspect"):
        weights = (bundle / "model.gguf").resolve()
        assert ggufc(command, moved, *more, "--weights-file", weights).exit_code == 0


def test_definitions_for_a_compiled_module_are_refused(bundle: Path, tmp_path: Path) -> None:
    done = ggufc("run", bundle, "hi", "--archdefs", tmp_path)
    assert done.exit_code == 2
    assert "--archdefs" in one_line(done.stderr)


@pytest.mark.slow
def test_what_a_file_says_of_its_tokens_and_is_not_believed_is_told_once(tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.bos_token_id": 99_999}
    model = tiny_model(tmp_path / "m.gguf", "gemma3", Sizes(layers=2), metadata=metadata)
    told = "ggufc: note: tokenizer.ggml.bos_token_id is 99999, which is none of the "
    assert ggufc("export", model, "-o", tmp_path / "out").stderr.count(told) == 1
    for words in (("run", tmp_path / "out"), ("run", model, "--backend", "native")):
        done = ggufc(*words, "the", "-n", 1)
        assert (done.exit_code, done.stderr.count(told)) == (0, 1)


@pytest.mark.parametrize(
    ("tokenizer", "why"),
    [
        ({}, "the file has no tokenizer (tokenizer.ggml.model)"),
        ({"model": "llama"}, "tokenizer.ggml.tokens is missing"),
    ],
)
def test_a_model_without_a_tokenizer_runs_on_ids(tokenizer: dict[str, str], why: str, tmp_path: Path) -> None:
    keys, weights = ARCHITECTURES["llama"](Sizes(layers=1))
    metadata = {f"llama.{key}": value for key, value in keys.items()}
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in tokenizer.items()}
    model = write_gguf(tmp_path / "m.gguf", "llama", metadata, weights, "f32", 0)
    done = ggufc("run", model, "--backend", "native", "--prompt-ids", "2,5", "-n", 2)
    assert (done.exit_code, len(done.stdout.split())) == (0, 2)
    assert done.stderr.splitlines()[0] == f"ggufc: note: ids instead of text: {why}"
    done = ggufc("run", model, "--backend", "native", "the")
    assert done.exit_code == 3
    assert one_line(done.stderr).startswith(f"{why}; give token ids instead")


@pytest.mark.slow
def test_a_model_without_a_known_tokenizer_says_so_and_is_exported(tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.model": "rwkv"}
    model = tiny_model(tmp_path / "m.gguf", "gemma3", Sizes(layers=2), metadata=metadata)
    note = "note: ids instead of text: tokenizer.ggml.model is 'rwkv'"
    assert note in ggufc("export", model, "-o", tmp_path / "out").stderr
    done = ggufc("run", tmp_path / "out", "--prompt-ids", "2,5", "-n", 2)
    assert done.exit_code == 0
    assert len(done.stdout.split()) == 2
    assert done.stderr.startswith(f"ggufc: {note}")
    assert ggufc("run", tmp_path / "out", "the").exit_code == 3
    report = json.loads(ggufc("verify", tmp_path / "out", "--json").stdout)
    assert report["ok"] and {row["fed"] for row in report["rows"]} == {"random ids"}
