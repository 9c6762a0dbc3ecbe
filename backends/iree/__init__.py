"""Makes the module legal for IREE, links the kernels, compiles and runs it."""
