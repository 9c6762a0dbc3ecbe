"""What the compiler sees: the graph of one token, or of an encoder's text, in words.

python examples/graph.py MODEL.gguf
"""

import sys
from pathlib import Path

import ggufc
from ggufc.graph.model import open_model
from ggufc.graph.text import print_graph
from ggufc.passes import pipeline


def main(path: str) -> None:
    model = open_model(Path(path))
    decodes = model.definition.kind == "decoder"
    graph = pipeline.decode(model.graph, kv_type="f32") if decodes else pipeline.encode(model.graph)
    print(print_graph(graph), end="")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except ggufc.GgufcError as error:  # such as a model of the wrong kind
        sys.exit(f"graph.py: {error}")
