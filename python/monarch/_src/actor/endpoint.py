"""See ``monarch._src``."""

from monarch._actors.declarations import EndpointProperty, concurrent_endpoint, endpoint
from monarch._calls.endpoint import Endpoint, as_endpoint

__all__ = ["Endpoint", "EndpointProperty", "as_endpoint", "concurrent_endpoint", "endpoint"]
