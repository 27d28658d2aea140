"""Tools around programs: so far what tells addresses of machines, ``monarch.tools.network``."""

__all__: list[str] = []
