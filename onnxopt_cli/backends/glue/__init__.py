"""Code that several adapters share; it runs in the interpreter of their runtime."""
