"""Private paths of PyTorch Monarch that published programs import: re-exports of what lies in this package.

A module here has the name, and the names, that such programs use, and no code of its own; so has ``_rust_bindings``.
What exists is imported. What a later version brings is looked up in ``monarch.actor`` when somebody asks for it, so
that it is there as soon as it is there.
"""

import monarch._wiring  # noqa: F401


def later(module: str, name: str, names: tuple[str, ...]):
    """For ``__getattr__`` of a module: one of ``names`` as ``monarch.actor`` has it."""
    if name not in names:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    from monarch import actor

    try:
        return getattr(actor, name)
    except AttributeError:
        from monarch._notices import not_yet

        raise not_yet(f"{module}.{name}") from None
