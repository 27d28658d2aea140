"""The main programs of the processes that this package starts."""
