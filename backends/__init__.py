"""Executors of a graph, the bundle that holds a compiled one, and the session that drives either."""
