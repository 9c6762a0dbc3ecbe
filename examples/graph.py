"""What the compiler sees: a model's graph of one token, as text.

python examples/graph.py MODEL.gguf
"""

import sys
from pathlib import Path

from ggufc.graph.model import open_model
from ggufc.graph.text import print_graph
from ggufc.passes import pipeline


def main(path: str) -> None:
    model = open_model(Path(path))
    print(print_graph(pipeline.decode(model.graph, kv_type="f32")), end="")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
