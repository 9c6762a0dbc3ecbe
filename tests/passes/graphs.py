"""Graphs as short texts for the tests of passes."""

from ggufc.graph.ir import Graph
from ggufc.graph.ops import OPS
from ggufc.graph.text import parse_graph, print_graph
from ggufc.graph.verify import verify
from ggufc.passes.pipeline import Pass


def attributes(operation: str, **given: object) -> str:
    """All attributes of an operation as text: those given, and 0 for the others."""
    return "{" + ", ".join(f"{name} = {given.get(name, 0)}" for name in sorted(OPS[operation].attributes)) + "}"


def attention(window: int) -> str:
    """The attributes of an attention."""
    return attributes("attention", scale=0.5, window=window)


ROPE = attributes("rope", base=10000.0, dims=4, magnitude=1.0, scale=1.0, style="neox")


def graph(signature: str, body: str) -> Graph:
    """`graph @f(signature) { body }`, verified."""
    return verify(parse_graph(f"graph @f({signature}) {{\n{body}}}\n"))


def after(step: Pass, signature: str, body: str) -> str:
    """The text of a graph after a pass, verified: its signature, then its body, as they are written for `graph`."""
    text = print_graph(verify(step(graph(signature, body))))
    return text.removeprefix("graph @f").removesuffix("}\n").replace("\n  ", "\n")


def written(signature: str, body: str) -> str:
    """What `after` gives for this signature and body."""
    lines = "\n".join(line.strip() for line in body.strip().splitlines())
    return f"({signature}) {{\n{lines}\n"
