"""Sentence similarity with an encoder: which of some sentences means most nearly what the first one does.

python examples/similarity.py BUNDLE "A cat sleeps." "The market fell." "The kitten is napping."
"""

import sys

import ggufc
import numpy as np


def embedded(model: ggufc.Session, sentence: str) -> np.ndarray:
    """float32 (dim,), of length 1, so that a product of two is the cosine of their angle."""
    row = model.embed(sentence)
    return row / np.linalg.norm(row)


def main(bundle: str, sentence: str, *others: str) -> None:
    model = ggufc.load(bundle)
    wanted = embedded(model, sentence)
    near = [(float(wanted @ embedded(model, other)), other) for other in others]
    for cosine, other in sorted(near, reverse=True):
        print(f"{cosine:+.3f}  {other}")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except ggufc.GgufcError as error:  # such as a model of the wrong kind
        sys.exit(f"similarity.py: {error}")
