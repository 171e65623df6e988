"""Make NeMo's configuration schema know our keys, in place.

Scripts with ``schema=`` bind the class ``ExpManagerConfig`` early, and ``hydra_runner`` stores the expanded schema in
Hydra's ``ConfigStore`` before any plugin loads. So the class is made anew in place, and the stored nodes get the keys.
NeMo's own code goes on with a copy of the class as it was, so that it logs and refuses what it always did.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from typing import Any, Final, Optional

from immutable_logs.nemo_integration.settings import LOG_EVERY_RANK, LOG_LAYOUT

# OmegaConf reads the annotations of a structured configuration when the program runs.
_FIELDS: Final[dict[str, Any]] = {LOG_LAYOUT: Optional[str], LOG_EVERY_RANK: Optional[bool]}  # noqa: UP045
_PARAMETERS: Final = ("init", "repr", "eq", "order", "unsafe_hash", "frozen")
_METHODS: Final = ("__init__", "__repr__", "__eq__", "__hash__", "__lt__", "__le__", "__gt__", "__ge__")


def copy_schema(schema: type[Any]) -> type[Any]:
    """Return a dataclass of the same name and fields, without those of ours."""
    fields = [field for field in dataclasses.fields(schema) if field.name not in _FIELDS]
    namespace: dict[str, Any] = {"__module__": schema.__module__, "__qualname__": schema.__qualname__}
    namespace["__doc__"] = schema.__doc__
    namespace["__annotations__"] = {field.name: field.type for field in fields}
    for field in fields:
        if field.default_factory is not dataclasses.MISSING:
            namespace[field.name] = dataclasses.field(default_factory=field.default_factory)
        elif field.default is not dataclasses.MISSING:
            namespace[field.name] = field.default
    return dataclasses.dataclass(type(schema.__name__, (), namespace))


def extend_schema(schema: type[Any]) -> None:
    """Add our keys to a dataclass and to its subclasses, in place; does nothing the second time."""
    if LOG_LAYOUT in schema.__dataclass_fields__:
        return
    for name, kind in _FIELDS.items():
        schema.__annotations__[name] = kind
        # Keyword-only: otherwise the positional parameters of subclasses would move.
        setattr(schema, name, dataclasses.field(default=None, kw_only=True))
    _regenerate(schema)


def extend_stored_nodes(schema: type[Any]) -> None:
    """Add our keys to the expanded copies of the schema in Hydra's ``ConfigStore``, if Hydra is loaded."""
    config_store = sys.modules.get("hydra.core.config_store")
    if config_store is None:
        return
    pending = list(config_store.ConfigStore.instance().repo.values())
    while pending:
        entry = pending.pop()
        if isinstance(entry, dict):
            pending.extend(entry.values())
        else:
            _extend_node(entry.node, schema)


def _regenerate(schema: type[Any]) -> None:
    """Apply ``dataclass`` again, to a class and to its subclasses, with the options and the methods that they have."""
    if "__dataclass_fields__" in schema.__dict__:
        parameters: Any = schema.__dict__["__dataclass_params__"]
        positional = tuple(field.name for field in dataclasses.fields(schema) if field.init and not field.kw_only)
        generated = [name for name in _METHODS if _is_generated(schema, name)]
        has_match_args = schema.__dict__.get("__match_args__") == positional
        own = inspect.get_annotations(schema)
        for field in dataclasses.fields(schema):
            if field.name in own:
                setattr(schema, field.name, field)
        for name in [*generated, *(["__match_args__"] if has_match_args else [])]:
            delattr(schema, name)
        options = {name: getattr(parameters, name) for name in _PARAMETERS}
        dataclasses.dataclass(**options, match_args=has_match_args)(schema)
        schema.__dataclass_params__ = parameters
    for subclass in schema.__subclasses__():
        _regenerate(subclass)


def _is_generated(schema: type[Any], name: str) -> bool:
    """Tell whether ``dataclass`` made a method, which it compiles from a text and never puts over one of the class."""
    if name == "__hash__" and schema.__dict__.get(name, name) is None:
        return _is_generated(schema, "__eq__")
    method: Any = schema.__dict__.get(name)
    code = getattr(inspect.unwrap(method), "__code__", None)
    return code is not None and code.co_filename == "<string>"


def _extend_node(node: Any, schema: type[Any]) -> None:
    from omegaconf import DictConfig, ListConfig, OmegaConf

    content = getattr(node, "_content", None)
    if isinstance(node, ListConfig) and isinstance(content, list):
        children = list(content)
    elif isinstance(node, DictConfig) and isinstance(content, dict):
        children = list(content.values())
        kind = OmegaConf.get_type(node)
        if isinstance(kind, type) and issubclass(kind, schema):
            fresh = OmegaConf.structured(schema)
            for name in _FIELDS:
                child = fresh._get_node(name)
                child._set_parent(node)
                content.setdefault(name, child)
    else:  # a value, or a container that is null, missing or an interpolation
        return
    for child in children:
        _extend_node(child, schema)
