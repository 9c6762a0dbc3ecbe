"""What runs a graph, what is compiled of it, and what is done with that; `caches` and `executor` are common to all."""
