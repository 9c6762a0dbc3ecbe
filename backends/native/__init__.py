"""Kernels on quantized blocks and the executor that runs programs of them on the mapped file."""
