"""A function-calling assistant on a fixed list of tools.

The model chooses a tool by its probabilities and writes the arguments alone, within JSON that is written for it: so
every call is of a tool that exists, with the arguments that it takes, whatever the model.

python examples/functions.py BUNDLE "What is 17 times 23?"
"""

import inspect
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime

import ggufc
import numpy as np

Tool = Callable[..., str]


def multiply(a: str, b: str) -> str:
    """Multiply two numbers."""
    try:
        return f"{float(a) * float(b):g}"
    except ValueError:
        return f"{a!r} and {b!r} are not two numbers"


def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"In {city} it is {12 + len(city)} degrees and dry."


def clock() -> str:
    """Tell the time of day."""
    return datetime.now(UTC).strftime("It is %H:%M in UTC.")


TOOLS: dict[str, Tool] = {tool.__name__: tool for tool in (multiply, weather, clock)}
EXAMPLES = (
    ("What is 6 times 7?", "multiply", {"a": "6", "b": "7"}),
    ("Do I need a coat in Rome?", "weather", {"city": "Rome"}),
    ("How late is it?", "clock", {}),
    ("Multiply 120 by 9.", "multiply", {"a": "120", "b": "9"}),
    ("Is it raining in Tokyo?", "weather", {"city": "Tokyo"}),
    ("Tell me the time.", "clock", {}),
)


def choose(session: ggufc.Session, request: str) -> str:
    """The name of the tool that the model finds likeliest after the examples; it can't name any other."""
    shown = "".join(f"Request: {asked}\nTool: {name}\n\n" for asked, name, _ in EXAMPLES)
    encode = session.tokenizer.encode
    session.reset()
    first = session.prefill(encode(f"{shown}Request: {request}\nTool:"))
    scores: dict[str, float] = {}
    for name in TOOLS:
        ids, logits, scores[name] = encode(f" {name}", add_special=False), first, 0.0
        for token in ids:
            scores[name] += float(logits[token] - np.logaddexp.reduce(logits.astype(np.float64)))
            logits = session.decode(token)
        session.rewind(len(ids))  # the next name follows the same words
    return max(scores, key=lambda name: scores[name])


def arguments(session: ggufc.Session, request: str, name: str) -> dict[str, str]:
    """The arguments of a call: the model writes each value, up to its closing quote."""
    shown = [f"{asked}\n{json.dumps(call)}\n\n" for asked, tool, call in EXAMPLES if tool == name]
    text, found = f"{''.join(shown)}{request}\n{{", {}
    for n, parameter in enumerate(inspect.signature(TOOLS[name]).parameters):
        text += f'{", " if n else ""}"{parameter}": "'
        session.reset()
        found[parameter] = "".join(session.generate(text, max_tokens=16, stop=['"', "\n"]))
        text += json.dumps(found[parameter])[1:]
    return found


def main(bundle: str, request: str) -> None:
    session = ggufc.load(bundle)
    name = choose(session, request)
    call = arguments(session, request, name)
    print(json.dumps({"name": name, "arguments": call}))
    print(TOOLS[name](**call))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except ggufc.GgufcError as error:  # such as a model of the wrong kind
        sys.exit(f"functions.py: {error}")
