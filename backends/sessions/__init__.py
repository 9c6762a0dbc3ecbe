"""Runs a bundle or a model: loads it, feeds it tokens, and draws, cuts off and judges what comes out."""
