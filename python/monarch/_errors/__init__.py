"""The exceptions of the public API, and how tracebacks are written."""
