"""Speed: of a model beside llama.cpp and the memory, of its operations one by one, and of every type of weights."""

from .operations import profile
from .plot import plot
from .speed import bench
from .weight_types import bench_types

__all__ = ["bench", "bench_types", "plot", "profile"]
