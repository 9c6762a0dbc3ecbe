"""Looks at a model and at this machine, and measures and compares what runs: nothing here is needed to run one."""
