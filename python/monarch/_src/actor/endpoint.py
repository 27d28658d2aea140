"""See ``monarch._src``."""

from monarch._endpoint import Endpoint, EndpointProperty, as_endpoint, concurrent_endpoint, endpoint

__all__ = ["Endpoint", "EndpointProperty", "as_endpoint", "concurrent_endpoint", "endpoint"]
