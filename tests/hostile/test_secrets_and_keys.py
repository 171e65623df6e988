"""Secrets that are in no record, and launch keys of any text."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from immutable_logs import Experiment, start_run
from tests.conftest import Children
from tests.hostile.conftest import Told, assert_told_well

SECRET = "correcthorsebattery"

ARGUMENTS: dict[str, list[str]] = {
    "equals": [f"--token={SECRET}"],
    "hydra": [f"+trainer.wandb_api_key={SECRET}"],
    "environment": [f"HF_TOKEN={SECRET}", f"MYSQL_PWD={SECRET}"],
    "header": ["--header", f"Authorization: Bearer {SECRET}"],
    "padded header": [f"Authorization: Basic {SECRET}==", f"X-Api-Key: {SECRET}="],
    "bare bearer": [f"Bearer {SECRET}"],
    "cookie": [f"Cookie: a=1; session={SECRET}"],
    "address": [f"https://user:{SECRET}@host/x", f"redis://:{SECRET}@host"],
    "signed address": [f"https://host/x?sv=1&sig={SECRET}", f"https://hooks.slack.com/services/T0/B0/{SECRET}"],
    "temporary AWS key": ["ASIA" + "ABCDEFGH12345678"],
    "a command in a text": [f"run=python x.py --password {SECRET}"],
    "mapping in a value": [f"logger={{wandb:{{api_key:{SECRET}}}}}"],
    "JSON in JSON": ['{"a": "{\\"password\\": \\"' + SECRET + '\\"}"}'],
    "a private key": [f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----"],
    "connection string": [f"AccountName=x;AccountKey={SECRET};x=y"],
}

CONFIGURATIONS: dict[str, Any] = {
    "nested": {"a": [{"b": ({"password": SECRET},)}]},
    "name and value": {"env": [{"name": "WANDB_API_KEY", "value": SECRET}]},
    "pair": {"headers": [["Authorization", SECRET]]},
    "key": {f"https://user:{SECRET}@host": 1},
    "header list": {"headers": [f"Authorization: Token {SECRET}=="]},
    "base64": {"password": SECRET + "/+=="},
    "auth": {"http_auth": SECRET, "webhook_url": SECRET, "db_pwd": SECRET},
}

LAUNCH = """
    from immutable_logs import start_run
    with start_run(sys.argv[1]):
        pass
"""


def everything_recorded(experiment: Path) -> str:
    """Return every name, link and content below an experiment."""
    parts = []
    for path in experiment.rglob("*"):
        parts.append(str(path.relative_to(experiment)))
        parts.append(os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else "")
    return "\n".join(parts)


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_secret_of_the_command_line_is_nowhere(experiment: Path, children: Children, arguments: list[str]) -> None:
    """Neither in a record nor in a name."""
    children.start(LAUNCH, experiment, *arguments).reports()

    found = everything_recorded(experiment)
    assert "***" in found
    assert SECRET not in found
    assert "ABCDEFGH12345678" not in found


@pytest.mark.parametrize("configuration", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_secret_of_the_configuration_is_nowhere(experiment: Path, configuration: Any) -> None:
    """However it is nested."""
    start_run(experiment, configuration=configuration).finish("failed", error=f"login --token {SECRET} failed")

    found = everything_recorded(experiment)
    assert "***" in found
    assert SECRET not in found


KEYS = {
    "slashes": "a/b/../../../c",
    "dots": "..",
    "newline": "a\nb",
    "no text": os.fsdecode(b"\xff\xfe"),
    "long": "k" * 5000,
    "wide": "ключ-🔑",
    "secret": f"token={SECRET}",
    "blank": " ",
    "escape codes": "\x1b[2J",
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_launch_key_of_any_text_ties_its_ranks_together(
    experiment: Path, children: Children, command: Callable[..., Told], key: str
) -> None:
    """Its directory has a safe, bounded name, directly below the claims, without a secret in it."""
    for rank in range(2):
        environ = {"IMMUTABLE_LOGS_LAUNCH_ID": key, "RANK": str(rank), "WORLD_SIZE": "2"}
        children.start(LAUNCH, experiment, environ=environ).reports()

    (run,) = Experiment(experiment).runs()
    assert run.ranks_joined == 2
    (claims,) = (experiment / "runs" / ".launches").iterdir()
    assert claims.name.isascii()
    assert len(claims.name) < 100
    assert SECRET not in everything_recorded(experiment)
    assert_told_well(command("verify", experiment), 0)


@pytest.mark.parametrize("rank", ["-1", "x", "²", "9" * 5000, "1.0"])
def test_rank_that_is_none_is_refused(experiment: Path, monkeypatch: pytest.MonkeyPatch, rank: str) -> None:
    """The error names the variable."""
    monkeypatch.setenv("RANK", rank)

    with pytest.raises(RuntimeError, match="expected a number of 0 or more in the environment variable RANK"):
        start_run(experiment)


@pytest.mark.parametrize(
    "reference", ["", "x" * 5000, "latest~" + "9" * 5000, "latest~-1", "latest~²", "../..", "\x1b[2J", "latest~0x1"]
)
def test_reference_that_means_nothing_is_wrong_use(
    experiment: Path, command: Callable[..., Told], reference: str
) -> None:
    """What was expected is said; a long one is not repeated."""
    start_run(experiment).finish()

    for name in ("show", "path", "logs"):
        told = command(name, "-e", experiment, "--", reference)

        assert_told_well(told, 2)
        assert "HINT: a reference is a run id" in told.stderr
        assert len(told.stderr) < 1000
        assert "\x1b" not in told.stderr
