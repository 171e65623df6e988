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
_GENERATED: Final = ("__init__", "__repr__", "__eq__", "__match_args__", "__replace__")


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
        setattr(schema, name, None)
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
    own = inspect.get_annotations(schema)
    for field in dataclasses.fields(schema):
        if field.name in own and field.default_factory is not dataclasses.MISSING:
            setattr(schema, field.name, field)
    for name in _GENERATED:
        if name in schema.__dict__:
            delattr(schema, name)
    dataclasses.dataclass(schema)
    for subclass in schema.__subclasses__():
        if "__dataclass_fields__" in subclass.__dict__:
            _regenerate(subclass)


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
