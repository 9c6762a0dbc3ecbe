"""Text to token ids and back, as llama.cpp does it.

A `Tokenizer` is the same for every family: it cuts a text at its special tokens, adds those that begin and end one, and
puts characters together again. What lies between special tokens is a family's affair (`families.py`, one module
each), and is done by a stock library wherever that gives llama.cpp's ids.
"""

from .tokenizer import Tokenizer, TokenStream

__all__ = ["TokenStream", "Tokenizer"]
