"""A user's own architecture: one file in a directory, no code; and what a mistake in that file is told.

The architecture, `swan`, is a Llama that norms what each sublayer gives instead of what it is given, with a sliding
window in every second layer. No definition of it is shipped, and llama.cpp doesn't know it: a forward pass in numpy is
the judge.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import ggufc
import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner, Result
from gguf import GGUFReader
from ggufc.backends.bundles.bundle import read_bundle
from ggufc.cli import main
from ggufc.frontend.definitions import VARIABLE
from ggufc.frontend.errors import GgufcError, InputError, UnsupportedError
from ggufc.graph.model import open_model

from .tiny_models import TOKENS, Sizes, tiny_llama
from .tiny_models.pieces import attention, decoder, ends, ffn, norms, stack
from .tiny_models.vocabulary import vocabulary
from .tiny_models.writer import Weights, write_gguf

Floats = npt.NDArray[np.float32]

SWAN = """\
arch swan
kind decoder

parameters
  layers   block_count
  width    embedding_length
  heads    attention.head_count
  kv_heads attention.head_count_kv  = heads
  head_dim attention.key_length     = width / heads
  eps      attention.layer_norm_rms_epsilon
  base     rope.freq_base           = 10000
  window   attention.sliding_window = 0

layers
  near     every 2   : span = window
  far      otherwise : span = 0

prologue
  x = embed tokens, token_embd.weight

block
  q = linear x, blk.{i}.attn_q.weight, [heads, head_dim]
  k = linear x, blk.{i}.attn_k.weight, [kv_heads, head_dim]
  v = linear x, blk.{i}.attn_v.weight, [kv_heads, head_dim]
  q = rope q, neox, base
  k = rope k, neox, base
  a = attention q, k, v, scale = 1 / sqrt(head_dim), window = span
  a = linear a, blk.{i}.attn_output.weight
  a = rms_norm a, blk.{i}.post_attention_norm.weight, eps
  x = add x, a
  g = linear x, blk.{i}.ffn_gate.weight
  u = linear x, blk.{i}.ffn_up.weight
  g = silu g
  f = mul g, u
  f = linear f, blk.{i}.ffn_down.weight
  f = rms_norm f, blk.{i}.post_ffw_norm.weight, eps
  x = add x, f

epilogue
  x = rms_norm x, output_norm.weight, eps
  logits = linear x, output.weight | token_embd.weight
"""
SIZES = Sizes(layers=4)
WINDOW = 6
IDS = [2, *np.random.default_rng(3).integers(3, len(TOKENS), 20).tolist()]


@pytest.fixture(scope="module")
def swan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of this architecture."""
    return write_swan(tmp_path_factory.mktemp("models") / "swan.gguf")


@pytest.fixture
def archdefs(tmp_path: Path) -> Path:
    """A directory with the definition."""
    return directory(tmp_path / "archdefs", SWAN)


def write_swan(path: Path) -> Path:
    def block(_: int) -> Weights:
        return attention(SIZES) | norms(SIZES.width, "post_attention_norm", "post_ffw_norm") | ffn(SIZES)

    before, after = ends(SIZES, tied=False)
    keys = decoder(SIZES) | {"attention.sliding_window": WINDOW, "rope.freq_base": 5000.0}
    metadata = vocabulary() | {f"swan.{key}": value for key, value in keys.items()}
    return write_gguf(path, "swan", metadata, before | stack(SIZES.layers, block) | after, "f32", 0)


def directory(folder: Path, text: str, name: str = "swan") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.archdef").write_text(text)
    return folder


def command(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def forward(path: Path, ids: list[int]) -> Floats:
    """The logits (tokens, vocabulary) of the architecture, written as its formulas stand."""
    tensors = {t.name: t.data.astype(np.float64) for t in GGUFReader(path).tensors}
    positions = np.arange(len(ids))
    half = SIZES.head_dim // 2
    angles = positions[:, None] * 5000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    back = positions[:, None] - positions

    def norm(x: npt.NDArray[np.float64], name: str) -> npt.NDArray[np.float64]:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * tensors[f"{name}.weight"]

    def heads(x: npt.NDArray[np.float64], name: str, count: int) -> npt.NDArray[np.float64]:
        return (x @ tensors[f"{name}.weight"].T).reshape(len(ids), count, SIZES.head_dim)

    def rotated(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    x = tensors["token_embd.weight"][ids]
    for i in range(SIZES.layers):
        at = f"blk.{i}."
        q = rotated(heads(x, f"{at}attn_q", SIZES.heads))
        k = rotated(heads(x, f"{at}attn_k", SIZES.kv_heads)).repeat(SIZES.heads // SIZES.kv_heads, 1)
        v = heads(x, f"{at}attn_v", SIZES.kv_heads).repeat(SIZES.heads // SIZES.kv_heads, 1)
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(SIZES.head_dim)
        seen = (back >= 0) & (back < (WINDOW if i % 2 else len(ids)))
        weights = np.exp(np.where(seen, scores - scores.max(-1, keepdims=True), -np.inf))
        mixed = np.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdims=True), v).reshape(len(ids), -1)
        x = x + norm(mixed @ tensors[f"{at}attn_output.weight"].T, f"{at}post_attention_norm")
        gate, up = (x @ tensors[f"{at}ffn_{part}.weight"].T for part in ("gate", "up"))
        x = x + norm((gate / (1 + np.exp(-gate)) * up) @ tensors[f"{at}ffn_down.weight"].T, f"{at}post_ffw_norm")
    return (norm(x, "output_norm") @ tensors["output.weight"].T).astype(np.float32)


# A definition in a directory is all that an architecture takes


@pytest.mark.parametrize("backend", ["native", *(pytest.param(b, marks=pytest.mark.slow) for b in ("xla", "iree"))])
def test_it_runs(backend: str, swan: Path, archdefs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    session = ggufc.load(swan, backend=backend, archdefs=[archdefs])
    wanted = forward(swan, IDS)
    assert np.ptp(wanted, axis=1).min() > 5  # nats: the model says something
    assert np.abs(session.prefill(IDS[:9]) - wanted[8]).max() < 1e-4
    for position in range(9, len(IDS)):
        assert np.abs(session.decode(IDS[position]) - wanted[position]).max() < 1e-4


@pytest.mark.slow
def test_every_command_takes_it(swan: Path, archdefs: Path, tmp_path: Path) -> None:
    words = ("--archdefs", archdefs, "--json")
    done = command("export", swan, "-o", tmp_path / "bundle", *words)
    assert done.exit_code == 0, done.stderr
    assert read_bundle(tmp_path / "bundle").manifest["architecture"] == {
        "name": "swan",
        "sha256": open_model(swan, [archdefs]).definition.sha256,
    }
    greedy = int(forward(swan, IDS)[-1].argmax())
    ids = ",".join(map(str, IDS))
    for model, backend in ((swan, "native"), (tmp_path / "bundle", "iree")):
        given = words if model is swan else ("--json",)  # a compiled bundle needs no definition
        done = command("run", model, "--prompt-ids", ids, "-n", "1", "--backend", backend, *given)
        assert json.loads(done.stdout)["tokens"] in ([greedy], []), done.stderr  # none: it is a stop token
    assert json.loads(command("inspect", swan, *words).stdout)["architecture"] == "swan"
    (archdefs / "swan.archdef").unlink()  # the bundle has its own
    bundle = tmp_path / "bundle"
    assert (bundle / "swan.archdef").read_text() == SWAN
    assert json.loads(command("inspect", bundle, "--arch", "--json").stdout)["source"] == str(bundle / "swan.archdef")
    assert json.loads(command("verify", bundle, "--json").stdout)["ok"]
    short = ("-p", "4", "-n", "2", "-r", "1", "--backend", "native")
    assert json.loads(command("bench", bundle, *short, "--json").stdout)["decode_tok_s"] > 0
    assert "takes no --archdefs" in command("inspect", bundle, *words).stderr


def test_inspect_shows_what_the_definition_makes_of_the_model(swan: Path, archdefs: Path) -> None:
    sha256 = hashlib.sha256(SWAN.encode()).hexdigest()
    shown = command("inspect", swan, "--arch", "--archdefs", archdefs).stdout.splitlines()
    for line in (
        f"source        {archdefs}/swan.archdef",
        f"sha256        {sha256}",
        "   7  parameters  heads = 4  (attention.head_count)",
        "  15  layers      near: 1, 3",
        "  22  block       q = linear blk.{i}.attn_q.weight: f32[T, 4, 32] x4",
        "  41  epilogue    logits = linear output.weight | token_embd.weight: f32[T, 310]",
        "not read  nothing",
    ):
        assert line in shown
    found = json.loads(command("inspect", swan, "--arch", "--archdefs", archdefs, "--json").stdout)
    assert (found["sha256"], found["unread"]) == (sha256, [])
    directory(archdefs, SWAN.replace("prologue\n", "prologue\n  y = embed tokens, token_embd.weight\n"))
    shown = command("inspect", swan, "--arch", "--archdefs", archdefs).stdout.splitlines()
    assert shown[-1] == f"not read  {archdefs}/swan.archdef:19:1: 'y' = embed is never read"
    assert command("inspect", swan, "--arch", "--graph", "decode").exit_code == 2


def test_inspect_shows_the_keys_that_a_definition_does_not_ask_for(swan: Path, archdefs: Path) -> None:
    """A scale that is forgotten has no tensor that would tell."""
    directory(archdefs, SWAN.replace("  base     rope.freq_base           = 10000\n", "  base     = 10000\n"))
    done = command("inspect", swan, "--arch", "--archdefs", archdefs)
    assert done.exit_code == 0 and "key       swan.rope.freq_base: no parameter asks for it" in done.stdout.splitlines()
    found = json.loads(command("inspect", swan, "--arch", "--archdefs", archdefs, "--json").stdout)
    assert "swan.rope.freq_base" in found["unread_keys"] and "swan.block_count" not in found["unread_keys"]


def test_inspect_shows_everything_that_an_unfinished_definition_leaves_unread(swan: Path, tmp_path: Path) -> None:
    text = SWAN.replace("  f = rms_norm f, blk.{i}.post_ffw_norm.weight, eps\n", "")
    text = text.replace("  a = rms_norm a, blk.{i}.post_attention_norm.weight, eps\n", "").replace(
        "span = window", "span = 0"
    )
    archdefs = directory(tmp_path, text)
    done = command("inspect", swan, "--arch", "--archdefs", archdefs)
    assert done.exit_code == 3
    assert "  40  epilogue    logits" not in done.stdout and "  39  epilogue    logits" in done.stdout
    assert done.stdout.splitlines()[-3:] == [
        "not read  blk.*.post_attention_norm.weight x4",
        "not read  blk.*.post_ffw_norm.weight x4",
        f"not read  {archdefs}/swan.archdef:12:1: parameter 'window' (key 'attention.sliding_window') is never read",
    ]
    assert done.stderr.count("\n") == 1 and "tensors 'blk.*.post_attention_norm.weight' (4), 'blk." in done.stderr
    found = json.loads(command("inspect", swan, "--arch", "--archdefs", archdefs, "--json").stdout)
    assert len(found["unread_tensors"]) == 8 and found["ignored"] == []
    for words in (("inspect", swan), ("export", swan, "-o", tmp_path / "out")):
        assert command(*words, "--archdefs", archdefs).exit_code == 3


def test_the_variable_names_directories(swan: Path, archdefs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match=r"no definition of architecture 'swan'.*--archdefs DIR"):
        open_model(swan)
    monkeypatch.setenv(VARIABLE, str(archdefs))
    assert open_model(swan).definition.source == str(archdefs / "swan.archdef")


def test_a_definition_goes_before_the_shipped_one(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "llama.gguf")
    shipped = open_model(model).definition
    text = Path(shipped.source).read_text()
    own = directory(
        tmp_path / "own", text.replace("  x      = rms_norm x,", "  x = scale x, 2\n  x = rms_norm x,"), "llama"
    )
    replaced = open_model(model, [own])
    assert replaced.definition.source == str(own / "llama.archdef")
    assert replaced.definition.sha256 != shipped.sha256
    assert "scale" in {op.name for op in replaced.graph.ops}


def test_a_broken_definition_is_never_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for the shipped one nor for that of a later directory; other architectures don't mind."""
    model = tiny_llama(tmp_path / "llama.gguf")
    broken = directory(tmp_path / "broken", "arch llama\nkind decodr\n", "llama")
    monkeypatch.setenv(
        VARIABLE, str(directory(tmp_path / "good", Path(open_model(model).definition.source).read_text()))
    )
    for load in (partial(open_model, model, [broken]), partial(ggufc.load, model, "native", archdefs=[broken])):
        with pytest.raises(
            InputError, match=r"broken/llama\.archdef:2:6: kind is 'decoder' or 'encoder', found 'decodr'"
        ):
            load()
    directory(broken, SWAN)
    assert open_model(write_swan(tmp_path / "swan.gguf"), [broken]).definition.name == "swan"


# Mistakes: what stands in the definition, what somebody wrote in its stead, and what that is told


@dataclass(frozen=True)
class Mistake:
    """`line` counts from the line of the change; None where the error is of no line."""

    right: str
    wrong: str
    told: tuple[str, ...]
    line: int | None = 0


MISTAKES: dict[str, Mistake] = {
    # words and marks
    "character": Mistake("embed tokens", "embed $tokens", ("character '$' has no meaning here",)),
    "long name": Mistake("  u = linear", f"  {'u' * 97} = linear", ("a word of 97 characters; at most 96",)),
    "huge number": Mistake("= 10000", "= 1e400", ("the number 1e400 is out of range",)),
    "no comma": Mistake("q, neox", "q neox", ("expected ',' between arguments, found 'neox'",)),
    "no equals": Mistake("a = linear a", "a linear a", ("expected '=' after 'a', found 'linear'",)),
    "open shape": Mistake(
        "[heads, head_dim]", "[heads, head_dim", ("expected ']' to close the shape, found 'end of line'",)
    ),
    "open bracket": Mistake("sqrt(head_dim),", "sqrt(head_dim,", ("to close sqrt(",)),
    # sections
    "section": Mistake("prologue\n", "prolog\n", ("no section 'prolog'", "did you mean 'prologue'?")),
    "second section": Mistake("epilogue\n", "prologue\n", ("a second section 'prologue'; the first is in line 18",)),
    "kind": Mistake("kind decoder", "kind decodr", ("kind is 'decoder' or 'encoder', found 'decodr'",)),
    "no epilogue": Mistake("epilogue\n", "", ("no steps in section 'epilogue'",), 2),
    "other name": Mistake("arch swan", "arch goose", ("defines 'goose', the file's name says 'swan'",), None),
    # parameters
    "key": Mistake(
        "embedding_length", "embeding_length", ("no key 'swan.embeding_length'", "'swan.embedding_length'?")
    ),
    "second parameter": Mistake("  base     rope", "  eps      rope", ("a second 'eps'; the first is in line 10",)),
    "no layers": Mistake("  layers   block", "  blocks   block", ("no parameter 'layers'",), 37),
    "unknown name": Mistake("width / heads", "width / head", ("no value 'head'", "did you mean 'heads'?")),
    "unused name": Mistake(
        "every 2   : span = window", "first 0 : span = widow", ("no value 'widow'", "did you mean 'window'?")
    ),
    "name in a step": Mistake("window = span", "window = spam", ("no value 'spam'", "did you mean 'span'?")),
    "value of a block": Mistake("weight, eps\n  logits", "weight, span\n  logits", ("no value 'span'",)),
    "when": Mistake(
        "  width    embedding", "  heads    = 1 when hats is 0\n  width    embedding", ("'heads' has no value yet",)
    ),
    "function": Mistake("sqrt(", "sqr(", ("no function 'sqr'", "did you mean 'sqrt'?")),
    "arguments": Mistake("sqrt(head_dim)", "max(head_dim)", ("max takes 2 argument(s), found 1",)),
    "division": Mistake("1 / sqrt(head_dim)", "1 / 0", ("division by zero",)),
    "key in a step": Mistake(
        "eps\n  x = add x, a", "rope.freq_base\n  x = add x, a", ("takes no further tensor", "rope.freq_base")
    ),
    # kinds of layers
    "selector": Mistake("every 2", "evry 2", ("no selector 'evry'", "did you mean 'every'?")),
    "no otherwise": Mistake("far      otherwise", "far      every 3", ("the layers that are left: NAME otherwise",)),
    "value of a kind": Mistake("every 2   : span = window", "every 2", ("kind 'near' gives no value for span",)),
    "block of a kind": Mistake("block\n", "block nera\n", ("no layer kind 'nera'", "did you mean 'near'?")),
    # steps
    "operation": Mistake("f = rms_norm", "f = rms_nrom", ("no operation 'rms_nrom'", "did you mean 'rms_norm'?")),
    "no attribute": Mistake("output_norm.weight, eps", "output_norm.weight", ("rms_norm still needs eps",)),
    "attribute": Mistake("window = span", "windw = span", ("no attribute 'windw'", "did you mean 'window'?")),
    "twice": Mistake("window = span", "scale = span", ("'scale' is given twice",)),
    "word": Mistake("q = rope q, neox", "q = rope q, nexo", ("style is one of neox, norm; found 'nexo'", "'neox'?")),
    "one more value": Mistake("mul g, u", "mul g, u, f", ("mul takes no further argument, found 'f'",)),
    "one value less": Mistake("mul g, u", "mul g", ("mul still needs b",)),
    "no tensor": Mistake("linear x, blk.{i}.ffn_up.weight", "linear x", ("linear still needs weight",)),
    "out of domain": Mistake("scale = 1", "scale = -1", ("attention: scale is -", "above 0")),
    # names of values
    "read before set": Mistake("add x, a", "add x, b", ("'b' is read before it is set",)),
    "block's own": Mistake("rms_norm x, output_norm", "rms_norm f, output_norm", ("'f' is read before it is set",)),
    "later layer": Mistake(
        "attention q, k,", "attention q, k@layers,", ("layers is 4, wanted the number of an earlier",)
    ),
    # tensors and shapes
    "tensor": Mistake(
        "attn_q.weight", "attn_qq.weight", ("no tensor 'blk.0.attn_qq.weight'", "'blk.0.attn_q.weight'?")
    ),
    "layer outside": Mistake("tokens, token_embd", "tokens, blk.{i}", ("'{i}' outside the block",)),
    "shape": Mistake(
        "[heads, head_dim]", "[kv_heads, head_dim]", ("'blk.0.attn_q.weight' has shape [128, 64], wanted [64, 64]",)
    ),
    "width": Mistake(
        "ffn_down.weight", "ffn_up.weight", ("'blk.0.ffn_up.weight' has shape [96, 64], wanted [96, 96]",)
    ),
    "unlike": Mistake(
        "add x, a", "add x, q", ("add: takes two values of one type, found f32[T, 64] and f32[T, 4, 32]",)
    ),
    "heads": Mistake(
        "v = linear x, blk.{i}.attn_v.weight, [kv_heads, head_dim]",
        "v = linear x, blk.{i}.attn_v.weight, [head_dim, kv_heads]",
        ("attention: k is f32[T, 2, 32] and v is f32[T, 32, 2]",),
        3,
    ),
    "untouched": Mistake(
        "  f = rms_norm f, blk.{i}.post_ffw_norm.weight, eps\n",
        "",
        ("tensors 'blk.*.post_ffw_norm.weight' (4) are in the file", "never reads them"),
        None,
    ),
    "optional tensor": Mistake(
        "blk.{i}.post_ffw_norm.weight",
        "blk.{i}.post_fwf_norm.weight?",
        ("is its optional 'blk.{i}.post_fwf_norm.weight' meant to be 'blk.*.post_ffw_norm.weight'?",),
        None,
    ),
    "vector": Mistake(
        "output_norm.weight, eps", "output.weight, eps", ("'output.weight' has shape [310, 64], wanted [64]",)
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_line(name: str, swan: Path, tmp_path: Path) -> None:
    mistake = MISTAKES[name]
    assert SWAN.count(mistake.right) >= 1
    text = SWAN.replace(mistake.right, mistake.wrong, 1)
    source = directory(tmp_path, text) / "swan.archdef"
    with pytest.raises(GgufcError) as caught:
        open_model(swan, [tmp_path])
    message = str(caught.value)
    assert "\n" not in message and str(source) in message
    for part in mistake.told:
        assert part in message
    if mistake.line is not None:
        line = SWAN[: SWAN.index(mistake.right)].count("\n") + 1 + mistake.line
        assert message.startswith(f"{source}:{line}:"), message


@pytest.mark.parametrize("name", ["k", "v"])
def test_keys_and_values_that_are_not_projected_are_told_by_every_command(
    name: str, swan: Path, tmp_path: Path
) -> None:
    """In the words of the definition, not of the graph that was made of it."""
    step = "  a = attention"
    text = SWAN.replace(step, f"  {name} = part x, 0, [kv_heads, head_dim]\n{step}")
    folder = directory(tmp_path / "archdefs", text)
    line = SWAN[: SWAN.index(step)].count("\n") + 1
    said = f"/swan.archdef:{line + 1}:7: a = attention (layer 0, far) reads '{name}' of line {line}, which comes from"
    for words in (("inspect", swan, "--arch"), ("inspect", swan), ("export", swan, "-o", tmp_path / "out")):
        done = command(*words, "--archdefs", folder)
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert said in done.stderr
    with pytest.raises(InputError, match="which comes from the tokens without a projection"):
        ggufc.load(swan, backend="native", archdefs=folder)


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("window = span", "window = span, ahead = 4", "a = attention (layer 0, far) looks 4 positions ahead"),
        ("  logits = ", "  x = pool x, 1\n  logits = ", "x = pool (epilogue) of kind 1 depends on where"),
        (
            "  x = add x, f",
            "  x = add x, f\n  x = pool x, 3",
            "wanted a row for each of T tokens; pool of line 38 left the others out",
        ),
    ],
    ids=["ahead", "mean", "left out"],
)
def test_logits_that_depend_on_how_a_text_is_cut_are_refused(
    right: str, wrong: str, said: str, swan: Path, tmp_path: Path
) -> None:
    assert SWAN.count(right) == 1
    done = command("inspect", swan, "--arch", "--archdefs", directory(tmp_path, SWAN.replace(right, wrong)))
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr


def test_a_mistake_ends_a_command_with_its_one_line(swan: Path, tmp_path: Path) -> None:
    folder = directory(tmp_path / "archdefs", SWAN.replace("rms_norm x", "rms_nrom x"))
    for words in (
        ("run", swan, "--prompt-ids", "2"),
        ("export", swan, "-o", tmp_path / "out"),
        ("inspect", swan),
        ("verify", swan),
        ("bench", swan),
    ):
        done = command(*words, "--archdefs", folder)
        assert done.exit_code == 2
        assert done.stderr.endswith("swan.archdef:40:7: no operation 'rms_nrom' (did you mean 'rms_norm'?)\n")
    assert not (tmp_path / "out").exists()
