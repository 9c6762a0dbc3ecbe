"""Many conversations over one loaded model: weights and code are shared, the state is each session's own.

python examples/many_conversations.py BUNDLE "Once upon a time" "The recipe begins" "Dear Sir,"
"""

import sys

import ggufc


def take_turns(sessions: list[ggufc.Session], prompts: list[str]) -> list[str]:
    """Continues every session's text, a piece of each in turn: nothing of one gets into another."""
    generations = [session.generate(text, max_tokens=24) for session, text in zip(sessions, prompts, strict=True)]
    texts = list(prompts)
    open_ones = list(range(len(texts)))
    while open_ones:
        for n in list(open_ones):
            piece = next(generations[n], None)
            if piece is None:
                open_ones.remove(n)
            else:
                texts[n] += piece
    return texts


def main(bundle: str, *prompts: str) -> None:
    model = ggufc.load(bundle)
    sessions = [model.new() for _ in prompts]
    first = take_turns(sessions, list(prompts))
    second = take_turns(sessions, ["\nAnd then"] * len(prompts))  # each remembers what it said before
    for session, begin, end in zip(sessions, first, second, strict=True):
        print(f"{begin}{end}\n[{session.position} tokens, {session.cache_bytes() / 1e6:.1f} MB of caches]\n")
    for session in sessions:
        session.reset()  # forgets everything: the same prompts give the same texts again
    print("the same again after a reset:", take_turns(sessions, list(prompts)) == first)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except ggufc.GgufcError as error:  # such as a model of the wrong kind
        sys.exit(f"many_conversations.py: {error}")
