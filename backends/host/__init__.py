"""The machine that this process runs on: its processor, cores, folders and packages."""
