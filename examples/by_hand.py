"""Prefill and a greedy decode loop by hand.

python examples/by_hand.py BUNDLE "The capital of France is"
"""

import sys

import ggufc


def main(bundle: str, prompt: str) -> None:
    session = ggufc.load(bundle)
    stream = session.tokenizer.stream()
    logits = session.prefill(session.tokenizer.encode(prompt))
    for _ in range(48):
        token = int(logits.argmax())
        if token in session.tokenizer.eog_ids:
            break
        print(stream.push(token), end="", flush=True)
        logits = session.decode(token)
    print(stream.flush())


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except ggufc.GgufcError as error:  # such as a model of the wrong kind
        sys.exit(f"by_hand.py: {error}")
