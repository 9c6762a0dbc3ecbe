"""What a command reads has an end, its numbers are plain ones, and what it writes is whole or not there."""

import math
import resource
from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from ggufc.backends.sessions.sampling import Sampling
from ggufc.cli import main, prompts
from ggufc.cli.output import write_file
from ggufc.cli.run import run as run_command
from ggufc.frontend.errors import InputError


def run(*words: str | Path, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], input=stdin)


@pytest.mark.parametrize("words", [("run", "MODEL"), ("embed", "MODEL"), ("decide", "MODEL", "is it")])
def test_a_file_without_end_is_read_no_further_than_a_prompt_may_be_long(words: tuple[str, ...]) -> None:
    done = run(*words, "-f", "/dev/zero")
    assert done.exit_code == 2
    assert f"/dev/zero: longer than {prompts.MOST_BYTES} bytes" in done.stderr


@pytest.mark.parametrize("command", ["run", "embed"])
def test_standard_input_is_bounded_too(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "MOST_BYTES", 5)
    done = run(command, "MODEL", stdin="ä" * 3)
    assert done.exit_code == 2
    assert "standard input: longer than 5 bytes" in done.stderr


@pytest.mark.parametrize("option", ["--temperature", "--top-p", "--min-p", "--repeat-penalty", "--grace"])
@pytest.mark.parametrize("value", ["nan", "inf", "1e999", "1_0", "\uff12", "9" * 5000])
def test_a_number_that_is_none_is_refused_as_a_word(option: str, value: str) -> None:
    command = "serve" if option == "--grace" else "run"
    done = run(command, "MODEL", option, value)
    assert done.exit_code == 2
    assert f"Invalid value for '{option}'" in done.stderr and len(done.stderr) < 300


@pytest.mark.parametrize("option", ["--top-k", "--seed", "--tokens", "--threads"])
@pytest.mark.parametrize("value", ["2_0", "\u0663", "9" * 5000, "1.0", " 5"])
def test_a_whole_number_is_written_in_plain_digits(option: str, value: str) -> None:
    done = run("run", "MODEL", "hi", option, value)
    assert done.exit_code == 2
    assert "wanted a whole number" in done.stderr and len(done.stderr) < 300


def test_what_sampling_takes_is_what_its_options_take() -> None:
    names = {field.name for field in fields(Sampling)}
    bounded = [(str(option.name), option.type) for option in run_command.params if option.name in names]
    assert len(bounded) == 6
    for name, kind in bounded:
        assert isinstance(kind, click.IntRange | click.FloatRange) and kind.min is not None
        assert all(Sampling.of({name: value}) for value in (kind.min, kind.max) if value is not None)
        for value in (kind.min - 1, (math.inf if kind.max is None else kind.max) + 1):
            with pytest.raises(InputError):
                Sampling.of({name: value})


@pytest.mark.parametrize("ids", ["2_0", "\u0663", "9" * 5000, "0x10", "2.0"])
def test_ids_are_written_in_plain_digits(ids: str) -> None:
    done = run("run", "MODEL", "--prompt-ids", ids)
    assert done.exit_code == 2
    assert "wanted numbers with commas between" in done.stderr


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token"])
def test_a_template_variable_is_not_the_conversation(name: str) -> None:
    for command in (("decide", "MODEL", "is it"), ("chat", "MODEL"), ("serve", "MODEL")):
        done = run(*command, "--set", f"{name}=[]")
        assert done.exit_code == 2
        assert f"variable '{name}' is made of the conversation" in done.stderr


def test_a_variable_nested_without_end_is_text(tiny_gemma3_path: Path) -> None:
    done = run(
        "decide", tiny_gemma3_path, "is it", "--set", f"a={'[' * 50_000}", "--backend", "native", "--threads", "1"
    )
    assert done.exit_code == 0, done.stderr


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """As on a disk that is full."""
    path = tmp_path / "page.html"
    path.write_text("old")
    (tmp_path / "link.html").symlink_to(path)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        for name in ("page.html", "new.html"):
            with pytest.raises(InputError, match=f"{name}: can't be written: File too large"):
                write_file(tmp_path / name, "x" * 9999)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert path.read_text() == "old"
    write_file(tmp_path / "link.html", "new")
    write_file(Path("/dev/null"), "new")
    assert path.read_text() == "new" and Path("/dev/null").is_char_device()
    assert {p.name for p in tmp_path.iterdir()} == {"page.html", "link.html"}
