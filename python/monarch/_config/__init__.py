"""The configuration: its keys, what is set for them, and the values that they take."""
