"""`python -m ggufc` is the command `ggufc`."""

from .cli import main

if __name__ == "__main__":
    main()
