"""Traces a graph through JAX into portable StableHLO, and runs that module on XLA."""
