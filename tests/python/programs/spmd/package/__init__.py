"""Programs that are run with -m."""
