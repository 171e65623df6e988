from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pathlib2
import pytest
from omegaconf import OmegaConf

from immutable_logs.redaction import REDACTED, redact_arguments, redact_text, redact_value

SECRET = "correct-horse-battery"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--token", SECRET],
        [f"--token={SECRET}"],
        [f"--wandb-api-key={SECRET}"],
        ["--password", SECRET, "--epochs", "3"],
        [f"exp_manager.wandb_logger_kwargs.api_key={SECRET}"],
        [f"+trainer.secret={SECRET}"],
        [f"++model.hf_token={SECRET}"],
        [f"MLFLOW_TRACKING_PASSWORD={SECRET}"],
        [f"--aws_secret_access_key={SECRET}"],
        [f"--url=https://user:{SECRET}@host/path"],
        [f"https://user:{SECRET}@host/path"],
    ],
)
def test_secret_on_the_command_line_is_not_recorded(arguments: list[str]) -> None:
    """However it is given, its name stays and its value goes."""
    redacted = redact_arguments(["python", "train.py", *arguments])

    assert SECRET not in " ".join(redacted)
    assert REDACTED in " ".join(redacted)
    assert len(redacted) == len(arguments) + 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["model.tokenizer.dir=/data/tok", "model.max_tokens=512", "--num-tokens", "7", "data.token_id=3"],
        ["trainer.max_epochs=3", "exp_manager.explicit_log_dir=/a b/c", "--author=me"],
        ["https://host/path?x=1", "user@host:/path", "-c", "pass"],
        ["--token"],
        ["--use-token", "--epochs", "3"],
    ],
)
def test_harmless_arguments_stay_as_they_are(arguments: list[str]) -> None:
    """Tokenizers, token counts, addresses and paths are what people look for in a record."""
    assert redact_arguments(arguments) == arguments


@pytest.mark.parametrize(
    "token",
    [
        "hf_" + "a" * 30,
        "ghp_" + "A1" * 15,
        "github_pat_" + "a" * 30,
        "glpat-" + "a" * 20,
        "nvapi-" + "b" * 30,
        "sk-" + "c" * 30,
        "AKIA" + "ABCDEFGH12345678",
        "xoxb-1234567890-abc",
    ],
)
def test_known_kinds_of_tokens_are_found_in_any_text(token: str) -> None:
    """An error text or a positional argument can hold one."""
    assert redact_text(f"login with {token} failed") == f"login with {REDACTED} failed"


@dataclass
class Options:
    api_key: str = SECRET
    nested: dict[str, Any] = field(default_factory=lambda: {"password": SECRET, "lr": 0.1})


@pytest.mark.parametrize(
    "configuration",
    [
        {"wandb": {"api_key": SECRET}},
        {"loggers": [{"kwargs": ({"token": SECRET},)}]},
        OmegaConf.create({"wandb": {"api_key": SECRET}}),
        OmegaConf.create([{"api_key": SECRET}]),
        argparse.Namespace(api_key=SECRET),
        Options(),
        [Options()],
        {"url": f"postgres://me:{SECRET}@db/x"},
        {"credentials": {"user": SECRET}},
    ],
    ids=lambda value: type(value).__name__,
)
def test_secret_in_a_configuration_is_not_recorded(configuration: Any) -> None:
    """Wherever it is nested, in whichever kind of configuration."""
    text = json.dumps(redact_value(configuration))

    assert SECRET not in text
    assert REDACTED in text


def test_configuration_becomes_plain_json() -> None:
    """Numbers, nothing and truth stay what they are; paths and objects become text."""
    configuration = {
        "a": 1,
        "b": None,
        "c": True,
        "d": 1.5,
        "e": Path("/x"),
        "f": pathlib2.Path("/y"),
        3: ["z", {"g": ()}],
        "h": b"\xff",
        "i": {1},
    }

    assert redact_value(configuration) == {
        "a": 1,
        "b": None,
        "c": True,
        "d": 1.5,
        "e": "/x",
        "f": "/y",
        "3": ["z", {"g": []}],
        "h": r"b'\xff'",
        "i": [1],
    }


def test_secret_that_is_not_set_is_recorded_as_such() -> None:
    """Whether a key was given at all is worth knowing."""
    assert redact_value({"api_key": None}) == {"api_key": None}


def test_value_that_omegaconf_cannot_give_does_not_cost_the_others() -> None:
    """A missing value and an interpolation that leads nowhere are recorded by the name of their error."""
    configuration = OmegaConf.create({"a": "???", "b": "${nowhere}", "c": "${d}", "d": 4})

    assert redact_value(configuration) == {
        "a": "(MissingMandatoryValue)",
        "b": "(InterpolationKeyError)",
        "c": 4,
        "d": 4,
    }


@pytest.mark.parametrize(
    "text",
    [
        "exp_manager.wandb_logger_kwargs={api_key:abc123}",
        "exp_manager.wandb_logger_kwargs={name:n,api_key:'abc123',project:p}",
        "https://host/x?token=abc123&y=1",
        "https://host/x?X-Amz-Signature=abc123",
        "Authorization: Bearer abc123",
        "postgres://user:p@abc123@host/db",
        "client(api_key='abc123')",
    ],
)
def test_secret_inside_a_text_is_redacted(text: str) -> None:
    """A mapping in Hydra's syntax, a query, a header, a call in a traceback."""
    assert "abc123" not in redact_text(text)
    assert "abc123" not in " ".join(redact_arguments([text]))


@pytest.mark.parametrize(
    "text",
    ["tokenizer=bpe", "max_tokens=5", "model.pad_token=<pad>", "token not found", "num_tokens_per_batch: 7", "a:b@c"],
)
def test_what_only_resembles_a_secret_is_kept(text: str) -> None:
    """A record without its configuration would be of no use."""
    assert redact_text(text) == text
    assert redact_arguments([text]) == [text]


def test_secret_below_a_dotted_name_or_behind_a_flag_is_redacted() -> None:
    """`model.token.value=…`, a value that begins with a dash, and a command line in a configuration."""
    assert redact_arguments(["+model.token.value=abc123"]) == ["+model.token.value=***"]
    assert redact_arguments(["--token", "-abc123", "-v"]) == ["--token", "***", "-v"]
    assert redact_value({"command": ["run", "--token", "abc123"]}) == {"command": ["run", "--token", "***"]}


def test_redaction_takes_linear_time() -> None:
    """A tensor in an error text must not hold up the end of a training."""
    assert len(redact_text("x" * 3_000_000)) == 3_000_000
