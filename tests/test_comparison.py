from __future__ import annotations

from typing import Any

import pytest

from immutable_logs.comparison import (
    ADDED,
    CHANGED,
    REMOVED,
    Difference,
    compare_facts,
    compare_texts,
    flatten,
    name_arguments,
    show_values,
)


def test_only_what_differs_is_told() -> None:
    """In the order of the first run, then what is new."""
    before = {"same": 1, "gone": None, "other": [1, 2]}
    after = {"new": {}, "other": [2, 1], "same": 1}

    assert list(compare_facts("s", before, after)) == [
        Difference("s", "gone", REMOVED),
        Difference("s", "other", CHANGED, [1, 2], [2, 1]),
        Difference("s", "new", ADDED, after={}),
    ]


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), ("1", 1), (None, "null"), ([], {}), (0, None)])
def test_values_of_different_types_differ(one: object, other: object) -> None:
    """To Python some of them are equal; to a training they need not be."""
    assert len(list(compare_facts("s", {"a": one}, {"a": other}))) == 1
    assert show_values(one, other)[0] != show_values(one, other)[1]


def test_what_is_not_a_number_equals_itself() -> None:
    """Else it would be told for ever."""
    assert list(compare_facts("s", {"a": float("nan")}, {"a": float("nan")})) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": {"b": 1, "c": {"d": None}}, "e": []}, {"a.b": 1, "a.c.d": None, "e": []}),
        ({"a": {}}, {"a": {}}),
        ({}, {}),
        ({"l": [1, "x"]}, {"l": [1, "x"]}),
        ({"l": [{"a": 1}, [2, {"b": 3}], 4]}, {"l[0].a": 1, "l[1][0]": 2, "l[1][1].b": 3, "l[2]": 4}),
        ("text", {"(value)": "text"}),
        ([1], {"(value)": [1]}),
    ],
)
def test_nested_values_have_dotted_names(value: object, expected: dict[str, Any]) -> None:
    """As Hydra's overrides have."""
    assert flatten(value) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["python", "train.py", "a.b=1", "+c=x=y"], {"[0]": "python", "[1]": "train.py", "a.b": "1", "+c": "x=y"}),
        (
            ["train.py", "--lr", "0.1", "--fast", "--to=x"],
            {"[0]": "train.py", "--lr": "0.1", "--fast": "", "--to": "x"},
        ),
        (["-m", "train", "--x", "a=1"], {"-m": "train", "--x": "", "a": "1"}),
        (["a=1", "a=2", "a=3"], {"a": "1", "a (2)": "2", "a (3)": "3"}),
        ([], {}),
        ([7, None], {"[0]": "7", "[1]": "None"}),
    ],
)
def test_words_of_a_command_line_have_names(arguments: list[object], expected: dict[str, str]) -> None:
    """So that a changed value is one difference and not two."""
    assert name_arguments(arguments) == expected


def test_values_that_look_alike_are_shown_as_json() -> None:
    """All others are shown bare."""
    assert show_values("a", "b") == ("a", "b")
    assert show_values("1", 1) == ('"1"', "1")
    assert show_values({"b": 1, "a": 2}, None) == ('{"a": 2, "b": 1}', "null")


def test_texts_are_compared_line_by_line() -> None:
    """The lines have no ends; texts that are the same give none."""
    assert compare_texts("a\nb\n", "a\nc\n", ("one", "two")) == [
        "--- one",
        "+++ two",
        "@@ -1,2 +1,2 @@",
        " a",
        "-b",
        "+c",
    ]
    assert compare_texts("a", "a", ("one", "two")) == []
