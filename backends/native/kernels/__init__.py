"""The kernels, one family per file; each is written once and has two homes: this process and the compiled module."""
