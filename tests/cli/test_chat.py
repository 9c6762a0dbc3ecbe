"""`ggufc chat` as a person meets it, in a pseudo-terminal, and as a script does, through pipes."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from gguf import GGUFReader, GGUFWriter
from ggufc.cli import main

from ..tiny_models import TOKENS, tiny_gemma3

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' and m.content == 'no' %}"
    "{{ raise_exception('not that') }}{% endif %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>assistant\n{% endif %}"
)
OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that its Ctrl-C and its end are heard
os.execv(sys.executable, [sys.executable, "-m", "ggufc", *sys.argv[1:]])
"""
LONG = 100_000
"""Tokens of the context: an answer that isn't bounded takes minutes."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with chat templates, whose model never ends an answer of its own and says whole characters alone."""
    folder = tmp_path_factory.mktemp("chat")
    model = tiny_gemma3(folder / "model.gguf")
    made = folder / "talker.gguf"
    reader = GGUFReader(model)
    writer = GGUFWriter(made, "gemma3")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            element = field.types[1] if len(field.types) > 1 else None
            value = LONG if field.name == "gemma3.context_length" else field.contents()
            writer.add_key_value(field.name, value, field.types[0], element)
    writer.add_chat_template(
        [{"name": "default", "template": TEMPLATE}, {"name": "loud", "template": "LOUD" + TEMPLATE}]
    )
    for tensor in reader.tensors:
        data = tensor.data.copy()
        if tensor.name == "token_embd.weight":  # the head too: the logit of what isn't wanted is 0
            data[[n for n, token in enumerate(TOKENS) if token in ("<eos>", "<end_of_turn>") or "<0x" in token]] = 0
        writer.add_tensor(tensor.name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    done = CliRunner().invoke(main, ["export", str(made), "-o", str(folder / "bundle")])
    assert done.exit_code == 0, done.output
    return folder / "bundle"


def chat(bundle: Path, stdin: str, *words: str) -> Result:
    return CliRunner().invoke(main, ["chat", str(bundle), *words], input=stdin)


class Terminal:
    """A command with a pseudo-terminal for all its streams."""

    def __init__(self, *words: str | Path, **environment: str) -> None:
        self.master, slave = pty.openpty()
        self.resize(24, 80)
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWN_TERMINAL, *map(str, words)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb", **environment},
        )
        os.close(slave)
        self.seen = ""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait(self, pattern: str, seconds: float = 60) -> str:
        """What came since the last call, up to a pattern."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            ready, _, _ = select.select([self.master], [], [], max(0, end - time.monotonic()))
            assert ready, f"no {pattern!r} in {self.seen[-400:]!r}"
            try:
                self.seen += os.read(self.master, 65536).decode("utf-8", "replace")
            except OSError:
                raise AssertionError(f"the terminal closed before {pattern!r}: {self.seen[-400:]!r}") from None
        out, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return out

    def close(self) -> int:
        self.process.kill()
        os.close(self.master)
        return self.process.wait()


@pytest.fixture
def terminal(bundle: Path) -> Iterator[Terminal]:
    opened = Terminal("chat", bundle, "--temperature", "0", "--threads", "1")
    yield opened
    opened.close()


@pytest.mark.slow
def test_a_conversation_in_a_terminal(terminal: Terminal, tmp_path: Path) -> None:
    terminal.wait("/help tells.*\n.*>>> ")
    terminal.type("in the end\n")
    terminal.wait("end\r\n(?s:.{20})")  # the answer streams
    terminal.resize(10, 40)
    terminal.type("\x03")
    terminal.wait(r"ended by interrupted.*\n.*>>> ", 10)
    terminal.resize(50, 120)
    time.sleep(0.5)  # Python's input() hears an interrupt that comes with its prompt at the next key alone
    terminal.type("half a line\x03")
    terminal.wait("Ctrl-D or /bye leaves.*\n.*>>> ", 10)
    terminal.type("/stats\n")
    held = int(re.findall(r"context +(\d+) of 100000", terminal.wait("cache .*\n.*>>> "))[0])
    assert held > 20
    terminal.type('"""one\n')
    terminal.wait(r"\.\.\. ")
    terminal.type('two"""\n')
    terminal.wait('two"""\r\n(?s:.{20})')
    terminal.type("\x03")
    terminal.wait(r"interrupted.*\n.*>>> ", 10)
    terminal.type(f"/save {tmp_path}/talk.json\n")
    terminal.wait("4 messages")
    saved = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert [m["content"] for m in saved if m["role"] == "user"] == ["in the end", "one\ntwo"]
    terminal.wait(">>> ")
    terminal.type("/stats\n")
    stats = terminal.wait("cache .*\n.*>>> ")
    fed, cached = map(int, re.findall(r"(\d+) tokens fed in .* s, (\d+) were in the cache", stats)[0])
    assert (fed < 40, cached >= held) == (True, True), stats
    terminal.type("/sytem\n")
    terminal.wait("did you mean '/system'")
    terminal.wait(">>> ")
    terminal.type("/clear\n")
    terminal.wait(">>> ")
    terminal.type("\x04")
    assert terminal.process.wait(20) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("locale", "utf8"), [("C", "1"), ("C", "0"), ("POSIX", "1"), ("C.UTF-8", "0")])
def test_turns_and_names_of_any_script_are_typed_in_any_locale(
    locale: str, utf8: str, bundle: Path, tmp_path: Path
) -> None:
    terminal = Terminal("chat", bundle, "--threads", "1", "-n", "1", LC_ALL=locale, PYTHONUTF8=utf8)
    typed = ["日本?", "Größe", "ß 日本"]
    for words in typed:
        terminal.wait(">>> ")
        terminal.type(f"{words}\n")
    terminal.wait(">>> ")
    terminal.type(f"/save {tmp_path}/会話.json\n")
    terminal.wait("6 messages in")
    terminal.type(f"/load {tmp_path}/会話.json\n")
    terminal.wait("6 messages from")
    terminal.close()
    saved = json.loads((tmp_path / "会話.json").read_text("utf-8"))["messages"]
    assert [m["content"] for m in saved if m["role"] == "user"] == typed


@pytest.mark.slow
def test_an_interrupt_lets_a_command_end(bundle: Path) -> None:
    """The first `/system` begins the process that renders templates, which takes a while."""
    terminal = Terminal("chat", bundle, "--threads", "1")
    terminal.wait(">>> ")
    terminal.type("/system the ox\n")
    time.sleep(0.05)
    terminal.type("\x03")
    terminal.wait(">>> ")
    terminal.type("/system\n")
    terminal.wait("\nthe ox\r\n>>> ")
    terminal.type("\x04")
    assert terminal.process.wait(20) == 0


@pytest.mark.slow
def test_a_second_interrupt_and_a_closed_terminal_end_it(bundle: Path) -> None:
    terminal = Terminal("chat", bundle, "--threads", "1")
    terminal.wait(">>> ")
    terminal.type("in\n")
    terminal.wait("in\r\n(?s:.{10})")
    os.close(terminal.master)
    assert terminal.process.wait(20) in (128 + signal.SIGHUP, -signal.SIGHUP)


def test_lines_of_standard_input_are_turns(bundle: Path, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    done = chat(bundle, f"in the\n\n  /help is no command\n/save {saved}\n", "-n", "8", "--json", "--system", "an ox")
    assert done.exit_code == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["stop"] for answer in answers] == ["length", "length"]
    assert answers[1]["fed"] < answers[1]["prompt_tokens"]
    messages = json.loads(saved.read_text())["messages"]
    assert [message["content"] for message in messages[::2]] == ["an ox", answers[0]["content"], answers[1]["content"]]
    again = chat(bundle, f"/load {saved}\n/system\n/clear\nin the\n", "-n", "8")
    assert again.exit_code == 0, again.stderr
    assert again.stdout.startswith("an ox\n")


def test_the_same_seed_gives_the_same_answers(bundle: Path) -> None:
    one, same, other = (chat(bundle, "in\non\n", "-n", "12", "--seed", seed).stdout for seed in ("1", "1", "2"))
    assert one == same != other


@pytest.mark.parametrize(
    ("stdin", "words", "said"),
    [
        ("/nothing\n", (), "no command /nothing"),
        ("/clear now\n", (), "/clear takes no words"),
        ("/load /nowhere/talk.json\n", (), "/nowhere/talk.json: No such file"),
        ("/save /nowhere/talk.json\n", (), "/nowhere/talk.json: can't be written: No such file"),
        ("/save\n", (), "needs the name of a file"),
        ("/system no\n", (), "not that"),
        ("a\udcff\n", (), "line 1: byte 1 is not UTF-8"),
        ("日" * 101_000, (), "takes 101"),
        ("in\n", ("--template", "quiet"), "default, loud"),
        ("in\n", ("--chat-template", "/nowhere.jinja"), "/nowhere.jinja: No such file"),
        ("in\n", ("--set", "thinking"), "NAME=VALUE"),
        ("in\n", ("--top-p", "2"), "2.0 is not in the range 0<=x<=1"),
    ],
)
def test_what_goes_wrong_is_one_line(stdin: str, words: tuple[str, ...], said: str, bundle: Path) -> None:
    done = CliRunner().invoke(main, ["chat", str(bundle), *words], input=stdin.encode("utf-8", "surrogateescape"))
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.startswith("ggufc: error: ")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_leaves_ends_it(bundle: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ggufc", "chat", str(bundle)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write(b"in the\n")
    process.stdin.flush()
    assert process.stdout.read(5)
    process.stdout.close()
    assert process.wait(30) == 141
    assert process.stderr.read() == b""
    process.stdin.close()
    process.stderr.close()


def test_a_model_without_a_template_says_so(tiny_gemma3_path: Path, tmp_path: Path) -> None:
    words: list[Any] = ["chat", tiny_gemma3_path, "--backend", "native"]
    done = CliRunner().invoke(main, [str(word) for word in words], input="in\n")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "no chat template" in done.stderr
    file = tmp_path / "own.jinja"
    file.write_text(TEMPLATE)
    words += ["--chat-template", file, "-n", 4]
    assert CliRunner().invoke(main, [str(word) for word in words], input="in\n").exit_code == 0
