"""The shipped architecture definitions."""
