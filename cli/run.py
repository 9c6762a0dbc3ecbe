"""`ggufc run`."""

import sys
from collections.abc import Callable, Generator
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from ..frontend.errors import InputError, UnsupportedError
from .options import PATH, TEXT, kv_option, model_argument, sampling_options, stop_option, tokens_option
from .output import print_json, stream_text, tell
from .progress import Progress
from .prompts import parse_ids, read_standard_input, read_text, without_advice
from .sessions import Opener, session_options, tell_notes


@click.command(short_help="Continue a prompt with MODEL.")
@model_argument
@click.argument("prompt", type=TEXT, required=False)
@click.option("-f", "--file", "prompt_file", type=PATH, metavar="FILE", help="Read the prompt from a file.")
@click.option("--prompt-ids", metavar="IDS", help="Token ids, such as 2,818; fed as they are.")
@tokens_option
@sampling_options()
@stop_option
@click.option("--exact", is_flag=True, help="Backend native: float32 arithmetic on dequantized weights.")
@kv_option
@session_options
def run(
    model: Path,
    prompt: str | None,
    prompt_file: Path | None,
    prompt_ids: str | None,
    tokens: int,
    stop: tuple[str, ...],
    exact: bool,
    opener: Opener,
    as_json: bool,
    **sampling: Any,
) -> None:
    """Continue PROMPT with MODEL; without a prompt, standard input is read.

    \b
    Example: ggufc run gemma/ "The capital of France is" -n 32
             ggufc run gemma3:270m "The capital of France is"
             ggufc run gemma/ -f story.txt --temperature 0.8 --top-p 0.95 --seed 7
             echo "1, 2, 3," | ggufc run gemma/ --stop 10
    """
    from ..backends.sessions.sampling import Sampling
    from ..backends.sessions.stopping import StopTexts, checked_stops

    Sampling.of(sampling)  # before the model is opened
    stops = StopTexts(checked_stops(stop))
    given = _prompt(prompt, prompt_file, prompt_ids)
    start = perf_counter()
    session = opener.open(model, exact)
    tokenizer = _tokenizer(session, needed=isinstance(given, str))
    ids = tokenizer.encode(given) if isinstance(given, str) else given
    loaded = perf_counter()
    ends = tokenizer.eog_ids if tokenizer else ()
    generation = session.generate_ids(ids, max_tokens=tokens, stop=ends, **sampling)
    write: Callable[[str], None] = (lambda text: None) if as_json else stream_text
    generation = _shown(generation, session, len(ids))
    generated, text, reason, prefilled = _generate(generation, tokenizer and tokenizer.stream(), stops, write)
    ended = perf_counter()
    timings = {
        "load_s": loaded - start,
        "prefill_tok_s": len(ids) / (prefilled - loaded),
        "decode_tok_s": (len(generated) - 1) / (ended - prefilled) if len(generated) > 1 else None,
    }
    if as_json:
        found = {"prompt_tokens": len(ids), "tokens": generated, "text": text, "stop": reason, "timings": timings}
        print_json(found | ({"target": session.facts.target} if session.facts.target else {}))
        return
    stream_text("\n")
    decode = f", {timings['decode_tok_s']:.1f} tok/s" if timings["decode_tok_s"] else ""
    target = f" the code for {session.facts.target}" if session.facts.target else ""
    click.echo(
        f"loaded{target} in {timings['load_s']:.2f} s; {len(ids)} prompt tokens, {timings['prefill_tok_s']:.1f} tok/s; "
        f"{len(generated)} generated{decode}; stopped by {reason}",
        err=True,
    )


def _prompt(text: str | None, file: Path | None, ids: str | None) -> str | list[int]:
    """The prompt from the one place where it was given, or from standard input."""
    if sum(given is not None for given in (text, file, ids)) > 1:
        raise InputError("give one of PROMPT, --file and --prompt-ids")
    if ids is not None:
        return parse_ids(ids)
    if text is not None:
        return text
    if file is not None:
        return read_text(file)
    if sys.stdin.isatty():
        raise InputError('no prompt; give one, as in ggufc run MODEL "Once upon a time"')
    read = read_standard_input()
    if not read:
        raise InputError('no prompt: standard input is empty; give one, as in ggufc run MODEL "Once upon a time"')
    return read


def _tokenizer(session: Any, needed: bool) -> Any:
    """The tokenizer, with its notes told; None, and why, for a model that runs on ids alone."""
    try:
        tokenizer = session.tokenizer
    except UnsupportedError as error:
        if needed:
            raise
        tell(f"ids instead of text: {without_advice(str(error))}")
        return None
    tell_notes(tokenizer)
    return tokenizer


def _shown(generation: Generator[int, None, str], session: Any, count: int) -> Generator[int, None, str]:
    """The generation; how far its prompt of so many tokens was read is shown until its first token is there."""
    with Progress() as progress:
        progress(lambda: f"reading the prompt, {session.position} of {count} tokens")
        try:
            first = next(generation)
        except StopIteration as end:
            return end.value
    yield first
    return (yield from generation)


def _generate(
    generation: Any, stream: Any, stops: Any, write: Callable[[str], None]
) -> tuple[list[int], str, str, float]:
    """Runs a generation: its ids, its text, why it ended, and when the prompt was done."""
    ids: list[int] = []
    pieces: list[str] = []
    done = 0.0

    def add(piece: str) -> None:
        pieces.append(piece)
        write(piece)

    while not stops.found:
        try:
            token = next(generation)
        except StopIteration as end:
            done = done or perf_counter()
            add(stops.push(stream.flush() if stream else "") + stops.flush())
            return ids, "".join(pieces), end.value, done
        done = done or perf_counter()
        ids.append(token)
        add(stops.push(stream.push(token) if stream else f"{token} "))
    return ids, "".join(pieces), "stop", done
