"""How processes are started, and where their output goes."""
