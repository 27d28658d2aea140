"""Programs in simulated processes: ``monarch.testing.simulate``."""
