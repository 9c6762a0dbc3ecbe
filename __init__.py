"""ggufc compiles a GGUF model into a small program that runs on the GGUF file's own bytes."""
