"""Words that can't be meant, and packages that aren't there: one line, whichever way they are met."""

import os
import subprocess
import sys
from pathlib import Path

import ggufc
import pytest
from click.testing import CliRunner
from ggufc.backends.reports.verify import verify
from ggufc.cli import main
from ggufc.frontend.errors import InputError

from ..tiny_models import Sizes, tiny_model

BASE_INSTALL = """
import sys
from importlib.abc import MetaPathFinder
class Absent(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ("jax", "jaxlib", "llvmlite", "gguf") or name.startswith("iree.compiler"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import ggufc
try:
    eval(sys.argv[1])
except ggufc.GgufcError as error:
    print(error.exit_code, error)
"""


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("run", "", "hi"), "MODEL"),
        (("export", "m.gguf", "-o", ""), "--output"),
        (("run", "m.gguf", "-f", ""), "--file"),
        (("run", "m.gguf", "hi", "--archdefs", ""), "--archdefs"),
        (("inspect", "m/", "--weights-file", ""), "--weights-file"),
        (("chat", "m.gguf", "--chat-template", ""), "--chat-template"),
    ],
)
def test_an_empty_name_is_not_the_current_folder(words: tuple[str, ...], option: str) -> None:
    done = CliRunner().invoke(main, list(words))
    assert done.exit_code == 2
    assert option in done.stderr and "the name is empty" in done.stderr


def test_an_empty_name_is_none_in_python_either() -> None:
    with pytest.raises(InputError, match="the model's name is empty"):
        ggufc.load("")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("ggufc.load(123)", "the model is 123"),
        ("ggufc.load(None)", "the model is None"),
        ("ggufc.load(MODEL, archdefs=5)", "a directory of definitions is 5"),
        ("ggufc.load(MODEL, archdefs=['a', 5])", "a directory of definitions is 5"),
        ("ggufc.export(123, 'out')", "the model is 123"),
        ("ggufc.export(MODEL, 123)", "the output is 123"),
        ("ggufc.export(MODEL, 'out', archdefs=[None])", "a directory of definitions is None"),
        ("verify([])", r"the model is \[\]"),
    ],
)
def test_what_is_no_path_is_refused_like_any_wrong_word(call: str, said: str, tiny_gemma3_path: Path) -> None:
    with pytest.raises(InputError, match=f"^{said}, wanted a path: a text or a pathlib.Path$"):
        eval(call.replace("MODEL", repr(str(tiny_gemma3_path))), {"ggufc": ggufc, "verify": verify})


@pytest.mark.parametrize(
    "words",
    [
        ("run", "m.gguf", "a\udcff"),
        ("run", "m.gguf", "hi", "--stop", "a\udcc3"),
        ("embed", "m.gguf", "fine", "a\udcff"),
        ("decide", "m.gguf", "a\udcff"),
        ("decide", "m.gguf", "hi", "-o", "a\udcff"),
        ("chat", "m.gguf", "--system", "a\udcff"),
        ("chat", "m.gguf", "--set", "a=\udcff"),
    ],
)
def test_words_that_are_not_utf8_are_refused(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, list(words))
    assert done.exit_code == 2
    assert f"byte {2 if '--set' in words else 1} is not UTF-8" in done.stderr


@pytest.mark.parametrize("locale", [{"PYTHONUTF8": "1"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}], ids=["UTF-8", "C"])
def test_bytes_of_the_shell_are_utf8_in_every_locale(locale: dict[str, str]) -> None:
    for word, said in (("ä".encode() + b"\xff", b"byte 2 is not UTF-8"), ("北京".encode(), b"no such file")):
        command = [os.fsencode(sys.executable), b"-m", b"ggufc", b"run", b"m.gguf", word]
        done = subprocess.run(command, capture_output=True, check=False, env=os.environ | locale)
        assert done.returncode == 2
        assert said in done.stderr


@pytest.mark.parametrize(
    "call", ["ggufc.export(MODEL, '/nowhere')", "ggufc.load(MODEL, 'native')", "ggufc.load(MODEL)"]
)
def test_a_missing_extra_is_an_error_like_any_other(call: str, tiny_gemma3_path: Path) -> None:
    call = call.replace("MODEL", repr(str(tiny_gemma3_path)))
    done = subprocess.run([sys.executable, "-c", BASE_INSTALL, call], capture_output=True, text=True, check=True)
    assert done.stdout == ("3 this needs the package llvmlite, which is not installed; pip install 'ggufc[export]'\n")


@pytest.mark.parametrize("command", ["run", "chat", "decide"])
def test_a_type_of_caches_reaches_the_session(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, kv: str, **__: object) -> None:
        raise InputError(f"caches of {kv}")

    monkeypatch.setattr("ggufc.backends.sessions.load.load", load)
    words = () if command == "chat" else ("hi",)
    done = CliRunner().invoke(main, [command, "m.gguf", *words, "--kv", "q8_0"])
    assert done.exit_code == 2 and "caches of q8_0" in done.stderr


def test_a_model_that_no_route_serves_is_refused(tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "m.gguf", "bert", Sizes(layers=1, heads=2, kv_heads=2), pooling=0)
    done = CliRunner().invoke(main, ["serve", str(path), "--port", "0", "--backend", "native"])
    assert done.exit_code == 3 and "no route for it" in done.stderr
