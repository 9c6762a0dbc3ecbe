"""What runs a graph, what is compiled of it, and what is done with that; `caches` and `executor` are common to all."""

BACKENDS = ("iree", "native", "xla")
"""What runs a model: the compiled module, kernels called from Python on the mapped file, or the portable module."""
