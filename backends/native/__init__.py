"""Kernels on quantized blocks and the numba executor that calls them on the mapped file."""
