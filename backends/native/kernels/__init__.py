"""The kernels, one family per file; each is written once and has two homes: numba and an object file."""
