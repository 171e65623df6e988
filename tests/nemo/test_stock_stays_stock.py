"""With the key unset, or `moving`, NeMo does what it does where this distribution is not installed."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = Path(__file__).parent / "scripts" / "stock_calls.py"


@pytest.fixture(scope="module")
def document_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Run the script of calls and return the document that it writes."""

    def run(*options: str, layout: str | None = None, environment: dict[str, str] | None = None) -> Any:
        directory, document = tmp_path_factory.mktemp("calls"), tmp_path_factory.mktemp("document") / "document.json"
        arguments = [str(directory), str(document), *([layout] if layout else [])]
        finished = subprocess.run(
            [sys.executable, *options, str(_SCRIPT), *arguments],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(directory),
                "CUDA_VISIBLE_DEVICES": "",
                "OMP_NUM_THREADS": "1",
                "WANDB_SILENT": "true",
                **(environment or {}),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )
        assert finished.returncode == 0, finished.stdout[-6000:]
        return json.loads(document.read_text(encoding="utf-8"))

    return run


@pytest.fixture(scope="module")
def stock(document_of: Callable[..., Any], stock_packages: Path) -> Any:
    """What a process says that cannot see this distribution; `-S` keeps `.pth` files from adding it."""
    return document_of("-S", environment={"PYTHONPATH": str(stock_packages)})


@pytest.fixture(scope="module")
def unset(document_of: Callable[..., Any]) -> Any:
    """What a process says in which this distribution is installed and nothing asks for it."""
    return document_of()


@pytest.fixture(scope="module")
def moving(document_of: Callable[..., Any]) -> Any:
    """What a process says whose configurations all say `log_layout: moving`, as far as they can hold a key."""
    return document_of(layout="moving")


@pytest.fixture(params=["unset", "moving"])
def addon(request: pytest.FixtureRequest) -> Any:
    """What a process says in which this distribution is installed."""
    return request.getfixturevalue(request.param)


def differences(expected: Any, found: Any, where: str = "") -> list[str]:
    """Return where two documents differ, and in what."""
    if isinstance(expected, dict) and isinstance(found, dict):
        names = {**expected, **found}
        return [line for name in names for line in differences(expected.get(name), found.get(name), f"{where}/{name}")]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [line for number, pair in pairs for line in differences(*pair, where=f"{where}/{number}")]
    return [] if expected == found else [f"{where}\n  stock: {expected!r}\n  here:  {found!r}"]


def test_the_control_does_not_know_this_distribution(stock: Any) -> None:
    """The process that stands for stock can import nothing of ours, and finds no entry point of ours."""
    assert stock["where"]["importable"] == []
    assert stock["where"]["entry points"] == []
    assert stock["where"]["loaded"] == []
    assert "get_log_dir" in stock["where"]["code"]


def test_the_compared_process_is_steered(addon: Any) -> None:
    """In the other process NeMo's function leads to ours, so that the comparison is one."""
    assert "immutable_logs.nemo_integration.session" in addon["where"]["loaded"]
    assert "hydra_plugins.immutable_logs_plugin" in addon["where"]["loaded"]
    assert "get_log_dir" not in addon["where"]["code"]
    assert addon["where"]["entry points"] == ["immutable_logs.nemo_integration.activation:external_callbacks"] * 2


def test_the_calls_reach_what_they_are_named_after(stock: Any) -> None:
    """Stock moves files, makes versions, resumes and refuses in the calls that are compared."""
    calls = stock["calls"]
    moved = [[name for name, _ in launch["tree"] if "/run_" in name] for launch in calls["resumed"]]
    assert moved[0] == ["exp/tiny/run_0", "exp/tiny/run_0/old.txt"]
    assert "exp/tiny/run_2" not in moved[1]
    assert "exp/tiny/run_2/cmd-args.log" in moved[2]
    assert calls["fresh, by number"][2]["environment"] == {"NEMO_EXPM_VERSION": [None, "version_2"]}
    assert calls["a training"][1]["ckpt_path"].endswith("-last.ckpt")
    assert calls["a training"][1]["global step"] > 0
    raised = {launches[-1]["raised"][0].partition(":")[0] for launches in calls.values() if "raised" in launches[-1]}
    assert len(raised) >= 10, raised
    assert len([launches for launches in calls.values() if "returned" in launches[0]]) >= 40


def test_every_refusal_of_stock_is_among_the_calls(stock: Any) -> None:
    """Each `raise` in a function of NeMo's module is reached by a call, so that what is compared is all there is."""
    spec = importlib.util.find_spec("nemo")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    tree = ast.parse(Path(spec.submodule_search_locations[0], "utils", "exp_manager.py").read_text(encoding="utf-8"))
    expected = {
        (function.name, range(node.lineno, (node.end_lineno or node.lineno) + 1))
        for function in tree.body
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Raise)
    }
    assert len(expected) > 15
    assert [
        f"{name} {lines.start}"
        for name, lines in sorted(expected, key=lambda each: each[1].start)
        if not any(function == name and line in lines for function, line in stock["refusals"])
    ] == []


@pytest.mark.parametrize("part", ["calls", "direct calls", "functions", "compositions"])
def test_everything_that_can_be_seen_is_as_in_stock(stock: Any, addon: Any, part: str) -> None:
    """Results, exceptions, files and their contents, log lines, the trainer, the environment, and Hydra's answers."""
    assert stock[part]
    found = differences(stock[part], addon[part])
    if found:
        pytest.fail("\n".join(found), pytrace=False)
