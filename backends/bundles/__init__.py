"""Makes a bundle of a model, and reads one: the folder that holds what was compiled."""
