"""Every example in the README and in the help runs as it stands, on tiny models under the names that it gives."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import ggufc
import pytest
from click.testing import CliRunner, Result
from ggufc.cli import FIRST_STEPS, main
from ggufc.cli.group import COMMANDS
from ggufc.graph.ops import WEIGHT_TYPES

from ..stores import put_hugging_face, put_ollama
from ..tiny_models import Sizes, tiny_model

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
TEXTS = ("story.txt", "prompt.txt", "article.txt", "letter.txt", "lines.txt")
COMPILING = ("export", "verify", "bench", "embed")
SERVER = re.compile(r"ggufc serve .*?(?:--port (\d+)|$)")
_EXAMPLE = re.compile(r'^(?: +(?:Example: )?|\$ )((?:echo "[^"]*" \| )?ggufc .+?)(?: {3,}.*)?$', re.MULTILINE)


def help_of(*words: str) -> str:
    return CliRunner().invoke(main, [*words, "--help"]).stdout


EXAMPLES = sorted(
    {line for text in (README, FIRST_STEPS, help_of(), *map(help_of, COMMANDS)) for line in _EXAMPLE.findall(text)}
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what examples name: models, a bundle, texts, a template, and stores with the model under names."""
    folder = tmp_path_factory.mktemp("world")
    metadata = {"tokenizer.chat_template": TEMPLATE}
    model = tiny_model(folder / "gemma.gguf", "gemma3", Sizes(layers=1), metadata=metadata)
    for name in ("model.gguf", "base.gguf"):
        shutil.copy(model, folder / name)
    tiny_model(folder / "minilm.gguf", "bert", Sizes(layers=1, heads=2, kv_heads=2))
    ggufc.export(model, folder / "gemma")
    shutil.copytree(folder / "gemma", folder / "model", symlinks=True)
    for name in TEXTS:
        (folder / name).write_text("the an in\n")
    (folder / "examples").symlink_to(Path(__file__).parents[2] / "examples")
    put_ollama(folder / "ollama", "registry.ollama.ai/library/gemma3/270m", model.read_bytes())
    files = {f"gemma-3-270m-{kind}.gguf": model.read_bytes() for kind in ("Q8_0", "Q4_0")}
    put_hugging_face(folder / "hub", "ggml-org/gemma-3-270m-GGUF", "aa", files)
    return folder


@pytest.fixture
def here(world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(world)
    monkeypatch.setenv("OLLAMA_MODELS", str(world / "ollama"))
    monkeypatch.setenv("HF_HUB_CACHE", str(world / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(world / "cache"))
    return world


def run(line: str) -> Result:
    """One line of a shell, in this process."""
    said, piped, command = line.rpartition(" | ")
    stdin = shlex.split(said)[1] + "\n" if piped else ""
    return CliRunner().invoke(main, shlex.split(command)[1:], input=stdin)


def stop_when_it_serves(port: str) -> None:
    """Ends the server in this process as a service manager would."""
    for _ in range(600):
        time.sleep(0.05)
        with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/health"):
            os.kill(os.getpid(), signal.SIGTERM)
            return


def test_every_command_has_examples() -> None:
    for command in COMMANDS:
        assert f"Example: ggufc {command}" in help_of(command), command
    assert len(EXAMPLES) > 20


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=[pytest.mark.slow] if re.search(f"ggufc ({'|'.join(COMPILING)}) ", line) else [])
        for line in EXAMPLES
    ],
)
@pytest.mark.usefixtures("here")
def test_an_example_runs_as_it_stands(line: str) -> None:
    if server := SERVER.match(line):
        threading.Thread(target=stop_when_it_serves, args=(server[1] or "8080",), daemon=True).start()
    done = run(line)
    assert done.exit_code == 0, f"{line}: {done.stderr}"


def test_a_bundle_holds_the_files_that_the_readme_lists(here: Path) -> None:
    listing = README.split("$ ls gemma/\n")[1].split("$ ")[0]
    names = {line.split()[0] for line in listing.splitlines()} | {"chat_template.jinja"}  # the model has one
    assert {path.name for path in (here / "gemma").iterdir()} == names


@pytest.mark.slow
def test_the_python_of_the_readme_runs_as_it_stands(
    real_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gemma.gguf").symlink_to(real_model)
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(block, {})
    assert "France" in capsys.readouterr().out


def test_a_template_of_ollama_alone_is_named_and_not_guessed_at(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "plain").mkdir()
    plain = tiny_model(here / "plain" / "m.gguf", "gemma3", Sizes(layers=1)).read_bytes()
    put_ollama(here / "ollama", "registry.ollama.ai/library/plain/latest", plain, template=b"{{ .Prompt }}")
    named = r"the model has no chat template .*, and Ollama's \(.*sha256-[0-9a-f]+\) is in Go's language"
    done = CliRunner().invoke(main, ["chat", "plain", "--backend", "native"], input="hi\n")
    assert done.exit_code == 2 and re.search(named, done.stderr)
    monkeypatch.setattr("ggufc.backends.serve.server.Server.run", lambda self: None)
    done = CliRunner().invoke(main, ["serve", "plain", "--backend", "native", "--port", "0"])
    assert done.exit_code == 0 and re.search(named, done.stderr)
    assert "\nplain at http://" in done.stderr  # what clients call the model, whose file is a blob


def completed(line: str, number: int) -> list[str]:
    """What the shell is told to offer for the word of that number."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(number), "_GGUFC_COMPLETE": "bash_complete"}
    command = [sys.executable, "-m", "ggufc"]
    done = subprocess.run(command, env={**os.environ, **words}, capture_output=True, text=True, check=True)
    return [offer.partition(",")[2] for offer in done.stdout.splitlines()]


@pytest.mark.usefixtures("here")
def test_the_shell_completes_commands_options_and_models() -> None:
    assert completed("ggufc ins", 1) == ["inspect"]
    assert "--temperature" in completed("ggufc run --temp", 2)
    assert completed("ggufc run gem", 2) == ["gemma/", "gemma.gguf", "gemma3:270m"]
    assert completed("ggufc run ggml-org/", 2) == [f"ggml-org/gemma-3-270m-GGUF:{kind}" for kind in ("Q4_0", "Q8_0")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rum"], "no command 'rum'; did you mean 'run'?"),
        (["gemma.gguf"], "no command 'gemma.gguf'; to run a model: ggufc run gemma.gguf"),
        (["zzz"], "no command 'zzz'; there are bench, "),
        (["run", "gemma/", "--tokenz", "3"], "'--tokens'"),
        (["run", "gema3", "hi"], "did you mean gemma/, gemma3:270m?"),
        (["run", "ggml-org/gemma-3-270m-GGUF", "hi"], "give one of ggml-org/gemma-3-270m-GGUF:Q4_0, "),
        (["export", "gemma3:1b", "-o", "x"], "gemma3:1b: no such file, bundle or model: did you mean gemma3:270m"),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_wrong_word_is_answered_with_the_nearest(words: list[str], said: str) -> None:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("program", sorted((Path(__file__).parents[2] / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_a_program_without_its_words_says_which_it_wants(program: Path) -> None:
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"\npython examples/{program.name} " in done.stderr and "Traceback" not in done.stderr


def test_the_readme_lists_what_runs() -> None:
    section = README.split("## What it runs")[1].split("\n## ")[0]
    table, _, types = section.partition("Weights may be")
    architectures = {
        word for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for word in row[1:-1].split("`, `")
    }
    shipped = Path(__file__).parents[2] / "archdefs"
    assert architectures - {"general.architecture"} == {path.stem for path in shipped.glob("*.archdef")}
    assert set(re.findall("`([a-z0-9_]+)`", types)) == set(WEIGHT_TYPES)
