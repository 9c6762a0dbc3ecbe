"""The archdef language: an architecture as a flat text file, which `parser` makes into a `tree.ArchDef`.

The grammar is in `archdefs/README.md`. A definition names steps over the tensors of a GGUF; it has no conditionals,
loops, calls or input and output, so parsing and using a stranger's file runs none of their code.
"""
