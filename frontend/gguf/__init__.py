"""The GGUF container, read within bounds from the memory-mapped file.

Layout (ggml's gguf.h): "GGUF", u32 version, u64 tensor count, u64 key count, the keys, the tensor table, padding to the
alignment, the data. Everything is little-endian. No number of the file is used before it was compared with the file's
real size, so that a hostile header costs neither time nor memory.

A model may be split into several files (keys `split.no`, `split.count`, `split.tensors.count`): the first has the
metadata, and each a table of its own tensors.
"""
