"""`ggufc decide`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..frontend.errors import InputError
from .options import PATH, TEXT, kv_option, model_argument, template_options
from .output import print_json, print_table
from .progress import Progress
from .prompts import read_text
from .sessions import Opener, session_options, tell_notes

if TYPE_CHECKING:
    from ..frontend.chat.templates import ChatTemplates


@click.command(short_help="Let MODEL choose among answers.")
@model_argument
@click.argument("question", type=TEXT)
@click.option(
    "-o", "--option", "given", type=TEXT, multiple=True, metavar="TEXT", help="An answer to choose; give two or more."
)
@click.option("--rating", metavar="LOW-HIGH", help="Answers are the whole numbers of a range, such as 1-5.")
@click.option("-f", "--file", "material_file", type=PATH, metavar="FILE", help="What the question is about.")
@template_options
@kv_option
@session_options
def decide(
    model: Path,
    question: str,
    given: tuple[str, ...],
    rating: str | None,
    material_file: Path | None,
    templates: "ChatTemplates | None",
    template: str | None,
    variables: dict[str, Any],
    opener: Opener,
    as_json: bool,
) -> None:
    """Answer QUESTION with yes or no, one of some options, or a rating, each with its probability.

    A model that generates text is asked, and read by the probabilities of its next words. Of a classifier QUESTION is
    the text, and the answers are its labels; a reranker says whether the file answers QUESTION.

    \b
    Example: ggufc decide gemma/ "Is a whale a fish?"
             ggufc decide gemma/ "What is this about?" -o sports -o politics -o science -f article.txt
             ggufc decide gemma/ "How friendly is this letter?" --rating 1-5 -f letter.txt --json
    """
    from ..backends.sessions.decide import YES_NO, classify
    from ..backends.sessions.decide import decide as choose

    if given and rating:
        raise InputError("give one of --option and --rating")
    options = given or (_range(rating) if rating else YES_NO)
    material = read_text(material_file) if material_file else ""
    session = opener.open(model)
    tell_notes(session.tokenizer)
    if session.facts.labels and (given or rating):
        raise InputError(f"the model has its own answers: {', '.join(session.facts.labels)}; give no others")
    with Progress() as progress:
        progress(lambda: f"reading the question, {session.position} tokens")
        decision = (
            classify(session, question, material)
            if session.facts.labels
            else choose(
                session,
                question,
                options,
                material=material,
                templates=templates,
                template=template,
                variables=variables,
            )
        )
    rows = list(zip(decision.options, decision.probabilities, decision.logprobs, strict=True))
    if as_json:
        report: dict[str, Any] = {
            "answer": decision.answer,
            "options": [{"option": o, "probability": p, "logprob": lp} for o, p, lp in rows],
            "covered": decision.covered,
        }
        print_json(report | ({"mean": decision.mean} if rating else {}))
        return
    mean = [("mean", f"{decision.mean:.2f}")] if rating else []
    print_table(
        [
            *((option, f"{probability:.1%}") for option, probability, _ in sorted(rows, key=lambda row: -row[1])),
            *mean,
            ("(all of these", f"{decision.covered:.1%} of what the model might say)"),
        ]
    )


def _range(rating: str) -> tuple[str, ...]:
    """The numbers of a range."""
    found = re.fullmatch(r"(\d{1,4})-(\d{1,4})", rating)
    if not found or not int(found[1]) < int(found[2]):
        raise InputError(f"--rating {rating[:40]!r}: wanted a range of whole numbers, such as 1-5")
    return tuple(map(str, range(int(found[1]), int(found[2]) + 1)))
