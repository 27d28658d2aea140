"""Whether an object is as the published schema says, of which the official client's models are made."""

import re
from functools import cache


@cache
def _models():
    try:
        from kubernetes import client
    except ImportError:
        return None
    return client


def check(body, model):
    """``body``: as JSON. ValueError: a field that is not there, or is missing, or is something else."""
    if _models() is not None:
        _check(body, model, model)


def _check(value, kind, at):
    if value is None:
        return
    if found := re.fullmatch(r"[Ll]ist\[(.+)\]", kind):
        _expect(value, list, at)
        for i, each in enumerate(value):
            _check(each, found[1], f"{at}[{i}]")
    elif found := re.fullmatch(r"[Dd]ict[([]str, (.+)[)\]]", kind):
        _expect(value, dict, at)
        for key, each in value.items():
            _check(each, found[1], f"{at}[{key!r}]")
    elif kind in ("str", "bytes", "datetime", "date"):
        _expect(value, str, at)
    elif kind in ("int", "bool", "float"):
        _expect(value, (int, float) if kind == "float" else {"int": int, "bool": bool}[kind], at)
    elif kind != "object":
        _check_model(value, getattr(_models(), kind), at)


def _check_model(value, model, at):
    _expect(value, dict, at)
    fields = {name: attribute for attribute, name in model.attribute_map.items()}
    for name, each in value.items():
        if name not in fields:
            raise ValueError(f"{at} has no field {name!r}")
        _check(each, model.openapi_types[fields[name]], f"{at}.{name}")
    try:
        model(**{attribute: value.get(name) for name, attribute in fields.items()})  # which looks for what is required
    except ValueError as error:
        raise ValueError(f"{at}: {error}") from error


def _expect(value, kind, at):
    if not isinstance(value, kind):
        raise ValueError(f"{at} is a {type(value).__name__}: {value!r}")
