"""`ggufc embed`, `ggufc decide` and the sampling of `ggufc run`, as their words and standard output."""

import json
from pathlib import Path

import ggufc
import numpy as np
import pytest
from click.testing import CliRunner, Result
from ggufc.cli import main

from ..tiny_models import Sizes, Weight, tiny_model

NATIVE = ("--backend", "native", "--threads", "1")


def run(*words: str | Path, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], input=stdin)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("embed") / "bert.gguf", "bert", Sizes(head_dim=16))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(
        tmp_path_factory.mktemp("decide") / "hot.gguf",
        "modern-bert",
        Sizes(head_dim=16),
        metadata={"pooling_type": 4, "classifier.output_labels": ["cold", "hot"]},
        weights={"cls.output.weight": Weight((2, 64), 0.5)},
    )


def test_embeddings_as_numbers(encoder: Path, tmp_path: Path) -> None:
    session = ggufc.load(encoder, "native", threads=1)
    wanted = [session.embed(session.tokenizer.encode(text)) for text in ("in the", "on 日本")]
    units = [row / np.linalg.norm(row) for row in wanted]
    words = ("embed", encoder, *NATIVE)
    found = json.loads(run(*words, "in the", "on 日本", "--json").stdout)
    np.testing.assert_allclose([row["embedding"] for row in found], units, atol=1e-5)
    assert [row["text"] for row in found] == ["in the", "on 日本"]
    lines = run(*words, "--raw", stdin="in the\non 日本\n").stdout.splitlines()
    np.testing.assert_allclose([[float(x) for x in line.split()] for line in lines], wanted, rtol=1e-5, atol=1e-5)
    (tmp_path / "lines.txt").write_text("in the\non 日本\n")
    cosines = json.loads(run(*words, "-f", tmp_path / "lines.txt", "--compare", "--json").stdout)["cosines"]
    np.testing.assert_allclose(cosines, np.array(units) @ np.array(units).T, atol=1e-5)
    ids = ",".join(map(str, session.tokenizer.encode("in the")))
    assert run(*words, "--prompt-ids", ids).stdout == run(*words, "in the").stdout


def test_a_decision_with_its_probabilities(tiny_gemma3_path: Path, classifier: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the ox\n")
    file = ("-f", tmp_path / "text.txt")
    found = json.loads(run("decide", tiny_gemma3_path, "is it", *file, "--json", *NATIVE).stdout)
    assert found["answer"] in ("Yes", "No")
    assert sum(option["probability"] for option in found["options"]) == pytest.approx(1)
    assert 0 < found["covered"] < 1
    rated = json.loads(run("decide", tiny_gemma3_path, "how", "--rating", "9-11", "--json", *NATIVE).stdout)
    assert [option["option"] for option in rated["options"]] == ["9", "10", "11"]
    assert 9 < rated["mean"] < 11
    table = run("decide", tiny_gemma3_path, "what", "-o", "an ox", "-o", "日本", *NATIVE).stdout
    assert all(line.endswith("%") for line in table.splitlines()[:2])
    labelled = json.loads(run("decide", classifier, "in the", *file, "--json", *NATIVE).stdout)
    assert [option["option"] for option in labelled["options"]] == ["cold", "hot"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("decide", "MODEL", "what", "-o", "one"), 2, "1 options"),
        (("decide", "MODEL", "what", "--rating", "5-1"), 2, "such as 1-5"),
        (("decide", "MODEL", "what", "-o", "a", "-o", "b", "--rating", "1-2"), 2, "one of --option and --rating"),
        (("decide", "MODEL", "what", "-f", "/nowhere.txt"), 2, "/nowhere.txt"),
        (("decide", "CLASSIFIER", "what", "-o", "a", "-o", "b"), 2, "cold, hot"),
        (("decide", "ENCODER", "what"), 3, "classifier's head"),
        (("embed", "ENCODER"), 2, "no texts"),
        (("embed", "ENCODER", "a", "-f", "lines.txt"), 2, "one of TEXT and --file"),
        (("embed", "ENCODER", "--prompt-ids", "1,x"), 2, "--prompt-ids"),
        (("embed", "MODEL", "a"), 3, "no embeddings"),
        (("embed", "CLASSIFIER", "a"), 3, "classifier"),
        (("run", "MODEL", "a", "--min-p", "2"), 2, "2.0 is not in the range 0<=x<=1"),
        (("run", "MODEL", "a", "--stop", ""), 2, "stop"),
    ],
)
def test_what_goes_wrong_is_one_line(
    words: tuple[str, ...], code: int, said: str, tiny_gemma3_path: Path, encoder: Path, classifier: Path
) -> None:
    paths = {"MODEL": tiny_gemma3_path, "ENCODER": encoder, "CLASSIFIER": classifier}
    done = run(*(paths.get(word, word) for word in words), *NATIVE)
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr
    assert done.stderr.startswith("ggufc: error: ")
    assert done.stderr.count("\n") == 1


def test_a_run_is_drawn_by_its_seed_and_cut_at_its_stop(tiny_gemma3_path: Path) -> None:
    words = ("run", tiny_gemma3_path, "in the", "-n", "30", "--json", *NATIVE)
    drawn = ("--temperature", "1", "--top-k", "50", "--top-p", "0.9", "--min-p", "0.01", "--repeat-penalty", "1.2")
    one, same, other = (json.loads(run(*words, *drawn, "--seed", seed).stdout) for seed in ("5", "5", "6"))
    assert one["tokens"] == same["tokens"] != other["tokens"]
    greedy = json.loads(run(*words).stdout)
    middle = greedy["text"][len(greedy["text"]) // 2 :][:3]
    cut = json.loads(run(*words, "--stop", middle).stdout)
    assert (cut["stop"], cut["text"]) == ("stop", greedy["text"][: greedy["text"].index(middle)])
    assert cut["tokens"] == greedy["tokens"][: len(cut["tokens"])]
