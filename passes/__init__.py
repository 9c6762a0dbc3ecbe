"""Rewrites of the graph, one per file, and the pipeline that runs them."""
