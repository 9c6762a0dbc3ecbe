"""`ggufc bench`: what its words mean, and what it prints."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ggufc.cli import main

from ..backends.reports.bench import fakes
from ..tiny_models import Sizes, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model(tmp_path_factory.mktemp("models") / "llama.gguf", "llama", Sizes(layers=1)))


def bench(*words: str) -> Result:
    return CliRunner().invoke(main, ["bench", *words])


LISTS = ("-p", "8,16", "-p", "32", "-n", "2", "--depth", "0,8", "--threads", "1,2", "-r", "1", "--backend", "native")


def test_numbers_may_come_in_lists_and_several_times(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.install(monkeypatch)
    report = json.loads(bench(model, *LISTS, "--against", "llama.cpp", "--json").stdout)
    assert [(row["threads"], row["tokens"]) for row in report["prefill"]] == [
        (n, t) for n in (1, 2) for t in (8, 16, 32)
    ]
    assert [(row["threads"], row["depth"]) for row in report["decode"]] == [(n, d) for n in (1, 2) for d in (0, 8)]


def test_tables_for_people(model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fakes.install(monkeypatch)
    drawing = tmp_path / "speed.svg"
    done = bench(model, *LISTS, "--against", "llama.cpp", "--plot", str(drawing))
    assert done.exit_code == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["2", "32", "1000.0", "500.0", "2.00"] in lines
    assert any(line[:6] == ["2", "8", "2", "100.0", "80.0", "1.25"] for line in lines)
    assert ["2", "4.0", "4.0", "4.0"] in lines
    assert "1000.0" in drawing.read_text() and "limit" in drawing.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "missing argument 'MODEL'"),
        (("--ops", "--types"), "missing argument 'MODEL'"),
        (("--types", "q9_9"), "no type of weights 'q9_9'"),
        (("MODEL", "-p", "0"), "'0': wanted whole numbers from 1"),
        (("MODEL", "-n", "1,x"), "'x': wanted whole numbers"),
        (("MODEL", "--depth", "1,,2"), "'': wanted whole numbers from 0"),
        (("MODEL", "--threads", "99999"), "'99999': wanted whole numbers from 1"),
        (("MODEL", "--plot", "/nowhere/x.svg"), "/nowhere/x.svg: no folder /nowhere"),
    ],
)
def test_wrong_words_are_refused_in_one_line(words: tuple[str, ...], said: str, model: str) -> None:
    done = bench(*(model if word == "MODEL" else word for word in words))
    assert done.exit_code == 2
    assert said in done.stderr and done.stderr.count("\n") == 1
    assert done.stdout == ""
