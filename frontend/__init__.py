"""What comes in: the GGUF container, the archdef language, the tokenizer."""
