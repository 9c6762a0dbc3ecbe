"""`ggufc embed`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..frontend.errors import InputError
from .options import PATH, TEXT, model_argument
from .output import print_columns, print_json, stream_text
from .progress import Progress
from .prompts import parse_ids, read_standard_input, read_text
from .sessions import Opener, session_options, tell_notes

if TYPE_CHECKING:
    import numpy as np


@click.command(short_help="Turn texts into embeddings.")
@model_argument
@click.argument("texts", type=TEXT, nargs=-1, metavar="[TEXT]...")
@click.option("-f", "--file", "text_file", type=PATH, metavar="FILE", help="Read texts from a file, one a line.")
@click.option("--prompt-ids", multiple=True, metavar="IDS", help="Token ids, such as 101,2023,102; fed as they are.")
@click.option("--raw", is_flag=True, help="As the model gives them, not of length 1.")
@click.option("--compare", is_flag=True, help="Print the cosine of each pair instead.")
@session_options
def embed(
    model: Path,
    texts: tuple[str, ...],
    text_file: Path | None,
    prompt_ids: tuple[str, ...],
    raw: bool,
    compare: bool,
    opener: Opener,
    as_json: bool,
) -> None:
    """Print the embedding of each TEXT, a line of numbers; without texts, lines of standard input are read.

    \b
    Example: ggufc embed minilm.gguf "A cat sleeps." "The market fell." --compare
             ggufc embed minilm.gguf -f lines.txt --json
    """
    import numpy as np

    given: list[str | list[int]] = [*map(parse_ids, prompt_ids), *_texts(texts, text_file, bool(prompt_ids))]
    if not given:
        raise InputError('no texts; give one, as in ggufc embed MODEL "A cat sleeps."')
    session = opener.open(model)
    if any(isinstance(text, str) for text in given):
        tell_notes(session.tokenizer)
    ids = [session.tokenizer.encode(text) if isinstance(text, str) else text for text in given]
    found: list[np.ndarray] = []
    with Progress() as progress:
        progress(lambda: f"{len(found)} of {len(ids)} texts")
        for one in ids:
            found.append(session.embed(one))
    if not raw:
        found = [rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12) for rows in found]
    if compare:
        _print_cosines(found, as_json)
    elif as_json:
        rows = zip(given, ids, found, strict=True)
        print_json(
            [
                {"text": text if isinstance(text, str) else None, "tokens": len(one), "embedding": rows.tolist()}
                for text, one, rows in rows
            ]
        )
    else:
        for rows in found:
            for row in np.atleast_2d(rows):
                stream_text(" ".join(f"{value:.7g}" for value in row) + "\n")


def _texts(texts: tuple[str, ...], file: Path | None, enough: bool) -> list[str]:
    """The texts from the one place where they were given, or from standard input."""
    if texts and file:
        raise InputError("give one of TEXT and --file")
    if texts or enough:
        return list(texts)
    if file is not None:
        return read_text(file).splitlines()
    return [] if sys.stdin.isatty() else read_standard_input().splitlines()


def _print_cosines(found: "list[np.ndarray]", as_json: bool) -> None:
    import numpy as np

    if any(rows.ndim > 1 for rows in found):
        raise InputError("--compare needs one embedding for each text, and this model gives one for each token")
    matrix = np.stack(found)
    matrix = matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)
    cosines = (matrix @ matrix.T).tolist()
    if as_json:
        print_json({"cosines": cosines})
        return
    head = ("", *(str(n) for n in range(1, len(cosines) + 1)))
    print_columns(head, [(str(n), *(f"{value:.4f}" for value in row)) for n, row in enumerate(cosines, 1)])
