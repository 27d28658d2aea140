"""Jobs of Lightning AI: machines of its cloud as hosts, over the package ``lightning_sdk``."""

from monarch.job._lightning_job import LightningJob

__all__ = ["LightningJob"]
