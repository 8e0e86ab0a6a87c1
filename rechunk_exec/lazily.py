"""Names of a package that are imported when they are first asked for. Layer: below all.

A worker process runs tasks and needs a part of the package: importing the rest took a quarter of its start.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def getter(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Return a package's ``__getattr__``.

    Parameters
    ----------
    package : str
        Its name.
    homes : dict of str to sequence of str
        For each of its modules, the names that the package has from there. Its modules are found without.
    """
    home = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> object:
        found = _module(package, home.get(name, name))
        if found is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(found, name) if name in home else found
        setattr(sys.modules[package], name, value)
        return value

    return get


def _module(package: str, name: str) -> object:
    """Import a module of a package; None if there is none of that name."""
    whole = f"{package}.{name}"
    if name.startswith("__"):
        return None
    try:
        return import_module(whole)
    except ModuleNotFoundError as error:
        if error.name != whole:
            raise
        return None
