from __future__ import annotations

from pathlib import Path

import pytest

from immutable_logs.errors import RecordError
from immutable_logs.hparams_file import parse_hparams


def test_values_are_plain_and_without_secrets() -> None:
    """Numbers stay numbers; Lightning redacts nothing."""
    assert parse_hparams(b"lr: 0.1\ncfg: {api_key: abc, n: 3}\n", "p") == {
        "lr": 0.1,
        "cfg": {"api_key": "***", "n": 3},
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: !!python/tuple [1, 2]", {"a": [1, 2]}),
        ("a: !!python/object:some.Class {b: 1}", {"a": {"b": 1}}),
        ("a: !!python/name:torch.optim.Adam ''", {"a": ""}),
        ("a: !!python/object/apply:os.system ['touch made']", {"a": ["touch made"]}),
        ("a: !own x", {"a": "x"}),
    ],
)
def test_objects_of_python_become_what_they_consist_of(
    text: str, expected: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is imported or run."""
    monkeypatch.chdir(tmp_path)

    assert parse_hparams(text.encode(), "p") == expected
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [b"a: [", b"\x00", b"a: &x [*y]", b"? [1]\n: 2\n", b"- " * 5000])
def test_what_is_no_yaml_is_told(data: bytes) -> None:
    """With the path."""
    with pytest.raises(RecordError, match="expected YAML, found something else") as caught:
        parse_hparams(data, "the path")
    assert str(caught.value).endswith(": the path")


def test_references_that_grow_without_end_are_refused() -> None:
    """A few lines can stand for more values than there is memory; one that leads to itself for endlessly many."""
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    for text in (bomb, "a: &a [*a]"):
        with pytest.raises(RecordError, match="expected at most 200000 values"):
            parse_hparams(text.encode(), "p")


def test_empty_file_has_no_values() -> None:
    """Lightning writes `{}` where there are none."""
    assert parse_hparams(b"{}\n", "p") == {}
    assert parse_hparams(b"", "p") is None
