"""Tools around programs: jobs of torchx, the command ``monarch``, addresses of machines."""

__all__: list[str] = []
