"""The archdef language: the shipped definitions, what a wrong line is told, and any text at all."""

import sys
from importlib.resources import files
from pathlib import Path
from time import process_time

import pytest
from ggufc.frontend.archdef import parser
from ggufc.frontend.archdef.parser import parse, read
from ggufc.frontend.archdef.tree import ArchDef, Call, Name, Number, TensorRef
from ggufc.frontend.definitions import find
from ggufc.frontend.errors import InputError, UnsupportedError
from hypothesis import given, settings
from hypothesis import strategies as st

SHIPPED = sorted(Path(str(files("ggufc.archdefs"))).glob("*.archdef"))
GEMMA3 = next(path for path in SHIPPED if path.stem == "gemma3").read_text()

SMALL = """\
arch toy
kind decoder
parameters
  layers block_count
  width  embedding_length = 8
  eps    norm_eps
layers
  local  first 2   : span = 4
  global otherwise : span = 0
prologue
  x = embed tokens, token_embd.weight
block
  h = rms_norm x, blk.{i}.norm.weight, eps
  x = linear h, blk.{i}.proj.weight, [width]
epilogue
  logits = linear x, output.weight | token_embd.weight
"""


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_definitions_parse_and_are_found_by_name(path: Path) -> None:
    assert find(path.stem) == read(path)
    assert read(path).name == path.stem


def test_a_definition_becomes_its_steps() -> None:
    toy = parse(SMALL, "toy.archdef")
    assert (toy.name, toy.kind) == ("toy", "decoder")
    assert [p.name for p in toy.parameters] == ["layers", "width", "eps"]
    norm, linear = toy.block(("local",))
    assert (norm.result, norm.operation, norm.line) == ("h", "rms_norm", 13)
    assert norm.tensors == (TensorRef(("blk.{i}.norm.weight",)),)
    assert norm.attributes == (("eps", Name("eps")),)
    assert linear.shape == (Name("width"),)
    assert toy.epilogue[0].tensors == (TensorRef(("output.weight", "token_embd.weight")),)


def test_arithmetic_binds_as_usual() -> None:
    toy = parse(SMALL.replace("= 8", "= 1 + 2 * -3 / sqrt(4) - 5"))
    six = Call("/", (Call("*", (Number(2), Call("neg", (Number(3),)))), Call("sqrt", (Number(4),))))
    assert toy.parameters[1].default == Call("-", (Call("+", (Number(1), six)), Number(5)))


def test_line_endings_comments_and_blank_lines_mean_nothing() -> None:
    noisy = "# a title\n\n" + SMALL.replace("\n", "  # why\r\n\r\n")
    assert [s.operation for s in parse(noisy).block(("local",))] == ["rms_norm", "linear"]


# line of SMALL, what stands there instead, the column and the start of the message
WRONG = {
    "unknown operation": (13, "  h = rmsnorm x, eps", 7, "no operation 'rmsnorm' (did you mean 'rms_norm'?)"),
    "unknown section": (12, "blok", 1, "no section 'blok'; lines of a section are indented (did you mean 'block'?)"),
    "second name": (2, "arch toy2", 1, "a second line 'arch'; the first is in line 1"),
    "second kind of file": (3, "kind encoder", 1, "a second line 'kind'; the first is in line 2"),
    "second section": (12, "prologue", 1, "a second section 'prologue'; the first is in line 10"),
    "unknown kind of file": (2, "kind decode", 6, "kind is 'decoder' or 'encoder', found 'decode'"),
    "unknown selector": (8, "  local frist 2", 9, "no selector 'frist'"),
    "kind after otherwise": (9, "  a otherwise\n  b first 1", 1, "no kind can follow 'otherwise'"),
    "second layer kind": (9, "  local otherwise", 1, "a second kind 'local'; the first is in line 8"),
    "kind without its value": (9, "  global otherwise", 1, "kind 'global' gives no value for span"),
    "value given twice": (8, "  local first 2 : span = 4, span = 5", 29, "'span' is given twice"),
    "block of no kind": (12, "block locale", 7, "no layer kind 'locale' (did you mean 'local'?)"),
    "block of two kinds of a section": (
        12,
        "block local global",
        13,
        "no layer is both 'local' and 'global', which one",
    ),
    "block of a kind twice": (12, "block local local", 13, "'local' is named twice"),
    "second shape": (14, "  x = linear h, a.b, [2], [width]", 28, "linear takes no second shape"),
    "another letter for the layer": (14, "  x = linear h, blk.{j}.b", 21, "'{j}' is unknown: the layer is {i}, a part"),
    "a layer that is no part": (14, "  x = linear h, blk{i}.b", 20, "'{i}' is unknown: the layer is {i}, a part"),
    "a layer left open": (14, "  x = linear h, blk.{i", 21, "'{i' is unknown"),
    "NUL in a comment": (14, "  x = linear h, a.b # \0", 23, "a control character, '\\x00'"),
    "escape in a comment": (6, "# \x1b[2J", 3, "a control character, '\\x1b'"),
    "carriage return in a comment": (6, "# a\rlayers", 4, "a control character, '\\r'"),
    "another line end": (6, "# a\u2028layers", 4, "a control character, '\\u2028'"),
    "text written backwards": (6, "# \u202esreyal", 3, "a control character, '\\u202e'"),
    "missing value": (13, "  h = rms_norm", 7, "rms_norm still needs x, eps"),
    "missing tensor": (11, "  x = embed tokens", 7, "embed still needs table"),
    "missing attribute": (13, "  h = rms_norm x, blk.{i}.norm.weight", 7, "rms_norm still needs eps"),
    "missing shape": (13, "  h = part x, 0", 7, "part still needs a [shape]"),
    "missing value before an attribute": (13, "  h = attention x, x, scale = 1", 7, "attention still needs v"),
    "word where a tensor is": (
        14,
        "  x = linear h, blk, [width]",
        17,
        "linear needs a tensor as 'weight', found 'blk'; a tensor's name has a dot in it, as blk.{i}.attn_q.weight",
    ),
    "word where a tensor may be": (
        14,
        "  x = linear h, a.b, bias",
        22,
        "linear takes nothing further but a tensor, found 'bias'; a tensor's name has a dot",
    ),
    "tensor of a kind misspelt": (
        9,
        "  global otherwise : span = 0, fine = a.b\nprologue\nblock\n  x = linear h, fin",
        17,
        "linear needs a tensor as 'weight', found 'fin'; a tensor's name has a dot in it, as "
        "blk.{i}.attn_q.weight (did you mean 'fine'?)",
    ),
    "further tensor": (11, "  x = embed tokens, a.b, c.d", 26, "embed takes no further tensor, found 'c.d'"),
    "further argument": (13, "  h = rms_norm x, eps, 2", 24, "rms_norm takes no further argument, found '2'"),
    "attribute twice": (13, "  h = rms_norm x, eps = 1, eps = 2", 28, "'eps' is given twice"),
    "unknown attribute": (13, "  h = rms_norm x, epz = 1", 19, "rms_norm has no attribute 'epz'; it has eps (did you"),
    "unknown word": (13, "  h = rope x, neo, 1", 15, "style is one of neox, norm; found 'neo' (did you mean 'neox'?)"),
    "place behind a name that left the order": (
        13,
        "  h = rope x, neox, 1, dims = 4, 2",
        34,
        "behind attributes by name the others have theirs too: scale or magnitude or yarn = ...",
    ),
    "optional before another": (
        16,
        "  l = linear x, output.weight? | a.b",
        30,
        "'?' stands behind the last of several",
    ),
    "shape where none is": (13, "  h = rms_norm x, eps, [width]", 25, "rms_norm takes no shape"),
    "open shape": (14, "  x = linear h, a.b, [width", 28, "expected ']' to close the shape, found 'end of line'"),
    "missing comma": (13, "  h = rms_norm x eps", 18, "expected ',' between arguments, found 'eps'"),
    "tensor where a value is": (13, "  h = rms_norm blk.0.a, eps", 16, "expected a value for 'x' of rms_norm"),
    "name that is no tensor": (16, "  l = linear x, output.weight | head", 33, "'head' is no tensor"),
    "key in an expression": (5, "  width embedding_length = a.b", 28, "'a.b' can't stand in an expression"),
    "unknown function": (
        5,
        "  width a = sqr(4)",
        13,
        "no function 'sqr'; there are sqrt, ",
    ),
    "arguments of a function": (5, "  width a = max(4)", 13, "max takes 2 argument(s), found 1"),
    "open bracket": (5, "  width a = (4", 15, "expected ')' to close the bracket, found 'end of line'"),
    "nothing to compute": (5, "  width a = 4 +", 16, "expected a number or a name, found 'end of line'"),
    "second parameter": (5, "  layers a", 1, "a second 'layers'; the first is in line 4"),
    "when of nothing": (5, "  width = 1 when layers is 2", 1, "'width' has no value yet for 'when' to replace"),
    "when of a word": (
        5,
        "  width a\n  width = 1 when layers is big",
        28,
        "expected a number or a quoted word after 'is'",
    ),
    "name of nothing": (5, "  width a = layer", 13, "no value 'layer' (did you mean 'layers'?)"),
    "parameter i": (5, "  i a = 1", 3, "'i' is the number of the layer, and can't be a parameter"),
    "name before its line": (4, "  layers = width", 12, "no value 'width'"),
    "name of nothing in a kind": (8, "  local first 2 : span = widht", 26, "no value 'widht' (did you mean 'width'?)"),
    "name of nothing in a step": (14, "  x = linear h, a.b, [2, widht]", 26, "no value 'widht' (did you mean 'wid"),
    "only a mark": (5, "  width a = 1 only [", 20, "expected a number, a quoted word or a parameter after 'only'"),
    "number and tensor": (9, "  global otherwise : span = a.b", 1, "kind 'global' gives a tensor as 'span', unlike"),
    "infinite number": (5, "  width a = 1e999", 13, "the number 1e999 is out of range: up to 9223372036854775808"),
    "number that vanishes": (5, "  width a = 1.5e-999", 13, "the number 1.5e-999 is out of range"),
    "long number": (5, f"  width a = {'9' * 90}", 13, f"the number {'9' * 90} is out of range"),
    "number in when": (5, "  width a\n  width = 1 when layers is 1e999", 28, "the number 1e999 is out of range"),
    "digit of another script": (5, "  width a = \u0663", 13, "character '\u0663' has no meaning here"),
    "character": (5, "  width a = 4 ; 5", 15, "character ';' has no meaning here"),
    "quote left open": (5, '  width a = "linear', 13, "a quoted word holds letters, digits, "),
    "long word": (5, "  " + "w" * 97 + " a", 3, "a word of 97 characters; at most 96 are allowed"),
    "long line": (5, "  width a = 4" + " " * 500, 500, "a line longer than 500 characters"),
    "deep brackets": (5, "  width a = " + "(" * 30 + "1" + ")" * 30, 38, "an expression nested more than 24 deep"),
    "deep signs": (5, "  width a = " + "-" * 30 + "1", 38, "an expression nested more than 24 deep"),
    "more than a line holds": (
        4,
        "  layers a b",
        12,
        "'b' is more than this line can hold; here may follow = DEFAULT, only VALUES; 'when' stands in a line of its",
    ),
    "when after a default": (
        5,
        "  width a = 1 when layers is 3",
        15,
        "'when' is more than this line can hold; here may follow only VALUES; 'when' stands in a line of its own: "
        "width = VALUE when PARAMETER is VALUE",
    ),
    "more after an expression": (
        5,
        "  width a\n  b = 1 only 2",
        9,
        "'only' is more than this line can hold; here may follow when PARAMETER is VALUE",
    ),
    "more after a selector": (
        8,
        "  local first 2 span",
        17,
        "'span' is more than this line can hold; here may",
    ),
    "only an unknown name": (5, "  width a = 1 only layer", 20, "no value 'layer' (did you mean 'layers'?)"),
    "layers in turn": (8, "  local every 0 : span = 4", 15, "every takes a whole number from 1, found 0"),
    "division by zero": (5, "  width a = layers / 0", 22, "division by zero"),
    "text in arithmetic": (5, '  width a = 2 * "x"', 17, "the text 'x' stands where a number is wanted"),
    "text as an attribute": (13, '  h = rms_norm x, eps = "x"', 25, "the text 'x' stands where a number is wanted"),
    "text by default in arithmetic": (
        6,
        '  eps norm_eps = "x"\n  more = 2 * eps',
        14,
        "'eps' has the text 'x' by default (line 6), and a number is wanted here",
    ),
    "byte order mark": (1, "\ufeffarch toy", 1, "begins with a byte order mark (U+FEFF); save the file as UTF-8"),
    "entry outside of sections": (1, "  arch toy", 3, "an indented line before any section"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_line_is_told_with_its_place(case: tuple[int, str, int, str]) -> None:
    number, line, column, message = case
    lines: list[str] = list(SMALL.split("\n"))
    lines[number - 1] = line
    last = number + line.count("\n")
    with pytest.raises(InputError) as error:
        parse("\n".join(lines), "toy.archdef")
    assert str(error.value).startswith(f"toy.archdef:{last}:{column}: {message}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("used", "place"), [("rms_norm x, blk.{i}.norm.weight, eps", "13:40"), ("local  first eps", "8:16")]
)
def test_a_text_by_default_is_no_number(used: str, place: str) -> None:
    """Though a file may have a number there."""
    text = SMALL.replace("norm_eps", 'norm_eps = "x"').replace(used.replace("first eps", "first 2"), used)
    with pytest.raises(
        InputError, match=f"^toy.archdef:{place}: 'eps' has the text 'x' by default .line 6., and a number"
    ):
        parse(text, "toy.archdef")


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("arch toy\n", "no line 'arch NAME'"),
        ("kind decoder\n", "no line 'kind decoder' or 'kind encoder'"),
        ("  layers block_count\n", "no parameter 'layers'"),
        ("  global otherwise : span = 0\n", "the last line of 'layers' must be for the layers that are left"),
        ("  x = embed tokens, token_embd.weight\n", "no steps in section 'prologue'"),
        ("  logits = linear x, output.weight | token_embd.weight\n", "no steps in section 'epilogue'"),
    ],
)
def test_what_is_missing_is_told(without: str, message: str) -> None:
    assert without in SMALL
    with pytest.raises(InputError, match=f"^toy.archdef:[0-9]+:1: {message}"):
        parse(SMALL.replace(without, ""), "toy.archdef")


def test_files_that_are_no_definition(tmp_path: Path) -> None:
    latin, large = tmp_path / "latin.archdef", tmp_path / "large.archdef"
    latin.write_bytes(b"arch caf\xe9")
    large.write_bytes(b"#" * (parser.MAX_BYTES + 1))
    for path, message in ((latin, "not UTF-8 text"), (large, "larger than"), (tmp_path / "none", "No such file")):
        with pytest.raises(InputError, match=message):
            read(path)


def test_a_users_directory_goes_before_the_shipped_ones(tmp_path: Path) -> None:
    (tmp_path / "gemma3.archdef").write_text(SMALL.replace("arch toy", "arch gemma3"))
    assert find("gemma3", [tmp_path]).source == str(tmp_path / "gemma3.archdef")
    assert find("gemma3", [tmp_path]).sha256 != find("gemma3").sha256


def test_a_broken_file_is_never_passed_over_for_the_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "gemma3.archdef").write_text("arch gemma3\nkind nonsense\n")
    with pytest.raises(InputError, match=r"gemma3\.archdef:2:6: "):
        find("gemma3", [tmp_path])


def test_an_unknown_architecture_names_the_nearest() -> None:
    with pytest.raises(UnsupportedError, match=r"no definition of architecture 'gema3'.*did you mean 'gemma3'"):
        find("gema3")


# ------------------------------------------------------------------------------------------ any text at all

WORDS = st.sampled_from(
    [*GEMMA3.split(), "\n", "\n  ", " ", "[", "]", "(", ")", ",", "-", "?", "|", "{i}", '"', "1e999"]
)


MANY = {
    "parameters": ("  width", "  a{n} = {n}\n"),
    "layer kinds": ("  global", "  k{n} first {n} : span = 1\n"),
    "kinds that give tensors, and steps": ("  h = rms_norm", "  h = gelu h\n"),
    "blocks": ("block\n", "block local\n  x = gelu x\n"),
}


@pytest.mark.parametrize(("before", "line"), MANY.values(), ids=MANY.keys())
def test_many_lines_take_a_moment_and_too_many_are_refused(before: str, line: str) -> None:
    """Quadratic work would take many times as long: all of these once took seconds."""
    small = SMALL.replace("span = 4", "span = 4, t = a.b").replace("span = 0", "span = 0, t = a.b")
    if "span = 1" in line:
        line = line.replace("span = 1", "span = 1, t = a.b")
    for count, refused in ((4000 // line.count("\n"), False), (4096, True)):
        text = small.replace(before, "".join(line.format(n=n) for n in range(count)) + before, 1)
        start = process_time()
        if refused:
            with pytest.raises(InputError, match=r"^toy.archdef:4\d\d\d:\d: more than 4096 lines that say something"):
                parse(text, "toy.archdef")
        else:
            parse(text, "toy.archdef")
        assert process_time() - start < 3


def parses_or_refuses(text: str) -> None:
    start = process_time()
    try:
        assert isinstance(parse(text, "any.archdef"), ArchDef)
    except InputError as error:
        assert str(error).startswith("any.archdef:")
    assert process_time() - start < 5


@given(st.text(max_size=2000))
def test_any_text(text: str) -> None:
    parses_or_refuses(text)


@given(st.lists(WORDS, max_size=300).map("".join))
def test_any_words_of_the_language(text: str) -> None:
    parses_or_refuses(SMALL.split("prologue")[0] + text)


@settings(max_examples=300)
@given(st.data())
def test_any_damage_to_a_real_definition(data: st.DataObject) -> None:
    text = GEMMA3
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(start + 40, len(text))))
        text = text[:start] + data.draw(st.text(max_size=3) | WORDS) + text[end:]
    parses_or_refuses(text)


@pytest.mark.parametrize("line", ["x = add x, x", "x = scale x, " + "1+" * 240 + "1", "#" * 499, "x" * 90])
def test_the_largest_file_is_read_in_a_moment(line: str) -> None:
    text = SMALL + f"  {line}\n" * (parser.MAX_BYTES // (len(line) + 3) - 10)
    parses_or_refuses(text)


_events: list[str] | None = None


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if _events is not None and event.startswith(("open", "os.", "socket.", "subprocess.", "shutil.", "exec", "import")):
        _events.append(event)


sys.addaudithook(_watch)


def test_parsing_opens_no_file_and_no_connection() -> None:
    global _events
    _events = []
    try:
        parse(GEMMA3)
        seen = _events
    finally:
        _events = None
    assert seen == []
