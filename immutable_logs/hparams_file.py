"""Read the ``hparams.yaml`` that Lightning's loggers leave: as plain values, secrets taken out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from immutable_logs.errors import RecordError
from immutable_logs.redaction import redact_value

_MAX_VALUES: Final = 200_000
"""With references a short document can stand for more values than fit into the memory."""


def parse_hparams(data: bytes, path: object) -> object:
    """Return the values in a file's bytes; objects of Python in it become what they consist of, and nothing is run.

    Raises:
        RecordError: If it is no YAML, or holds too much.
    """
    import yaml

    try:
        loader = yaml.SafeLoader(data.decode("utf-8", "replace"))
        try:
            # Lightning dumps what it was given, with tags that name classes.
            loader.yaml_multi_constructors = {**loader.yaml_multi_constructors, "": _construct_anything}
            value = loader.get_single_data()
        finally:
            loader.dispose()
        count = _count_values(value, {})
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        problem = next(iter(str(error).splitlines()), type(error).__name__)
        raise RecordError(str(path), f"expected YAML, found something else ({problem})") from None
    if count > _MAX_VALUES:
        raise RecordError(str(path), f"expected at most {_MAX_VALUES} values, found more")
    return redact_value(value)


def _construct_anything(loader: Any, _suffix: str, node: Any) -> object:
    if node.id == "mapping":
        return loader.construct_mapping(node, deep=True)
    if node.id == "sequence":
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node)


def _count_values(value: object, known: dict[int, float]) -> float:
    """Return how many values there are if every reference is followed; infinite for one that leads to itself."""
    if not isinstance(value, (Mapping, list, tuple, set)):
        return 1
    if id(value) not in known:
        known[id(value)] = float("inf")
        parts = value.values() if isinstance(value, Mapping) else value
        known[id(value)] = 1 + sum(_count_values(part, known) for part in parts)
    return known[id(value)]
