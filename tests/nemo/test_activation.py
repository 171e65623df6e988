"""How an unmodified script gets the layout: on the command line, in its configuration, by the environment, by code."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.nemo.conftest import ForkingServer

_YAML = """\
trainer: {accelerator: cpu, devices: 1, logger: false, enable_checkpointing: false}
exp_manager:
  exp_dir: exp
  name: tiny
  resume_if_exists: true
  resume_ignore_no_checkpoint: true
"""

_HYDRA = """\
import lightning.pytorch as pl
from nemo.core.config import hydra_runner
from nemo.utils.exp_manager import exp_manager

@hydra_runner(config_path=".", config_name="app")
def main(cfg):
    print(f"LOG_DIR={exp_manager(pl.Trainer(**cfg.trainer), cfg.get('exp_manager', None))}")

if __name__ == "__main__":
    main()
"""

_LATE_IMPORT = """\
from nemo.core.config import hydra_runner

@hydra_runner(config_path=".", config_name="app")
def main(cfg):
    import sys
    print(f"LOADED_BEFORE={'nemo.utils.exp_manager' in sys.modules}")
    import lightning.pytorch as pl
    from nemo.utils.exp_manager import exp_manager
    print(f"LOG_DIR={exp_manager(pl.Trainer(**cfg.trainer), cfg.exp_manager)}")

if __name__ == "__main__":
    main()
"""

_SCHEMA = """\
from dataclasses import dataclass, field
from typing import Any, Dict, Optional

import lightning.pytorch as pl
from nemo.core.config import hydra_runner
from nemo.utils.exp_manager import ExpManagerConfig, exp_manager

TRAINER = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False}

@dataclass
class App:
    trainer: Dict[str, Any] = field(default_factory=lambda: dict(TRAINER))
    exp_manager: Optional[ExpManagerConfig] = field(default_factory=ExpManagerConfig)

@hydra_runner(config_path=".", config_name="app", schema=App)
def main(cfg):
    print(f"LOG_DIR={exp_manager(pl.Trainer(**cfg.trainer), cfg.exp_manager)}")

if __name__ == "__main__":
    main()
"""

_COMPOSE = """\
import sys

import lightning.pytorch as pl
from hydra import compose, initialize
from nemo.utils.exp_manager import exp_manager

with initialize(config_path=".", version_base=None):
    cfg = compose("app", sys.argv[1:])
print(f"LOG_DIR={exp_manager(pl.Trainer(**cfg.trainer), cfg.exp_manager)}")
"""

_PLAIN = """\
import lightning.pytorch as pl
from nemo.utils.exp_manager import exp_manager
from omegaconf import OmegaConf

cfg = OmegaConf.load("app.yaml")
print(f"LOG_DIR={exp_manager(pl.Trainer(**cfg.trainer), cfg.exp_manager)}")
"""

_CODE = """\
import lightning.pytorch as pl
from nemo.utils.exp_manager import exp_manager as bound_early

def is_steered():
    return "session" in bound_early.__code__.co_names

print(f"STEERED={is_steered()}")
SWITCH_ON
print(f"STEERED={is_steered()}")
print(f"SAME={exp_manager is bound_early}")
cfg = {"exp_dir": "exp", "name": "tiny", "resume_if_exists": True, "resume_ignore_no_checkpoint": True}
trainer = pl.Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)
print(f"LOG_DIR={bound_early(trainer, {**cfg, 'log_layout': 'immutable'})}")
"""

_ENABLE = """\
import immutable_logs
exp_manager = immutable_logs.enable().exp_manager
"""

_UNKNOWN_NEMO = """\
import lightning.pytorch as pl
import nemo.utils.exp_manager

def exp_manager(trainer, cfg=None, rank=0):
    return f"exp/tiny, {cfg}, {rank}"

nemo.utils.exp_manager.exp_manager = exp_manager
trainer = pl.Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)
print(f"LOG_DIR={exp_manager(trainer, {'name': 'x'}, 7)}")
"""

_HYDRA_ALONE = """\
import sys

import hydra
from omegaconf import OmegaConf

@hydra.main(config_path=".", config_name="app", version_base=None)
def main(cfg):
    print(f"CONFIG={OmegaConf.to_container(cfg)}")

main()
loaded = {name.partition(".")[0] for name in sys.modules}
print(f"PLUGIN={'hydra_plugins.immutable_logs_plugin' in sys.modules}")
print(f"HEAVY={sorted(loaded & {'torch', 'nemo', 'lightning', 'pytorch_lightning', 'numpy', 'tensorboard', 'wandb'})}")
"""

_LIGHTNING_ALONE = """\
import sys

import lightning.pytorch as pl

trainer = pl.Trainer(accelerator="cpu", devices=1, logger=False, max_epochs=1)
print(f"CALLBACKS={[type(each).__name__ for each in trainer.callbacks]}")
print(f"ROOT={trainer.default_root_dir}")
print(f"ACTIVATION={'immutable_logs.nemo_integration.activation' in sys.modules}")
print(f"NEMO={'nemo' in sys.modules}")
"""


class Script:
    """A script that has ended: its exit code, everything that it printed, and the directory it ran in."""

    def __init__(self, code: int, output: str, directory: Path) -> None:
        self.code = code
        self.output = output
        self.directory = directory

    def values(self, name: str) -> list[str]:
        """Return what was printed after a name and `=`."""
        return re.findall(rf"^{name}=(.*)$", self.output, re.MULTILINE)

    def assert_immutable(self) -> None:
        """See that `exp_manager` returned a run directory, and that it is the newest run."""
        assert self.code == 0, self.output[-6000:]
        (log_dir,) = self.values("LOG_DIR")
        experiment = self.directory / "exp" / "tiny"
        assert (self.directory / log_dir).parent == experiment / "runs"
        assert (experiment / "latest").resolve() == (self.directory / log_dir).resolve()
        assert (self.directory / log_dir / "run.json").is_file()

    def assert_moving(self) -> None:
        """See that `exp_manager` returned stock's directory and left nothing of ours."""
        assert self.code == 0, self.output[-6000:]
        assert self.values("LOG_DIR") == [str(Path("exp", "tiny"))]
        assert not (self.directory / "exp" / "tiny" / "runs").exists()
        assert not (self.directory / "exp" / "tiny" / "latest").exists()

    def assert_refused(self, *texts: str) -> None:
        """See that the script failed, said so in these words, and made no experiment."""
        assert self.code not in (0, None), self.output[-6000:]
        assert not self.values("LOG_DIR")
        for text in texts:
            assert text in self.output
        assert not (self.directory / "exp").exists()


def write(directory: Path, script: str, yaml: str | None) -> Path:
    """Write a script and, beside it, its configuration."""
    if yaml is not None:
        (directory / "app.yaml").write_text(yaml, encoding="utf-8")
    path = directory / "app.py"
    path.write_text(script, encoding="utf-8")
    return path


@pytest.fixture
def start(tmp_path: Path, clean_environment: dict[str, str]) -> Callable[..., Script]:
    """Run a script in a new Python, as a user does."""

    def run(
        script: str, *arguments: str, yaml: str | None = _YAML, environment: dict[str, str] | None = None
    ) -> Script:
        finished = subprocess.run(
            [sys.executable, str(write(tmp_path, script, yaml)), *arguments],
            env={**clean_environment, **(environment or {})},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )
        return Script(finished.returncode, finished.stdout, tmp_path)

    return run


@pytest.fixture(scope="module")
def server(forking_server: Callable[..., AbstractContextManager[ForkingServer]]) -> Iterator[ForkingServer]:
    """A process that has imported NeMo and nothing of ours, and starts scripts."""
    with forking_server() as server:
        yield server


@pytest.fixture
def fork(tmp_path: Path, clean_environment: dict[str, str], server: ForkingServer) -> Callable[..., Script]:
    """Run a script in a process of its own that has NeMo imported already, as `forking_server.py` explains."""

    def run(
        script: str, *arguments: str, yaml: str | None = _YAML, environment: dict[str, str] | None = None
    ) -> Script:
        output = tmp_path / "output.txt"
        server.start(
            write(tmp_path, script, yaml),
            *arguments,
            directory=tmp_path,
            environment={**clean_environment, **(environment or {})},
            output=output,
        )
        return Script(server.end(), output.read_text(encoding="utf-8"), tmp_path)

    return run


def with_layout(layout: str) -> str:
    """Return the configuration with the key."""
    return f"{_YAML}  log_layout: {layout}\n"


def test_a_literal_key_on_the_command_line(start: Callable[..., Script]) -> None:
    """`exp_manager.log_layout=immutable` works with a script and a configuration that do not know the key."""
    start(_HYDRA, "exp_manager.log_layout=immutable").assert_immutable()


def test_a_script_that_imports_nemo_inside_main(start: Callable[..., Script]) -> None:
    """`exp_manager` may be imported after Hydra has loaded its plugins."""
    script = start(_LATE_IMPORT, "exp_manager.log_layout=immutable")
    script.assert_immutable()
    assert script.values("LOADED_BEFORE") == ["False"]


def test_a_script_without_hydra(start: Callable[..., Script]) -> None:
    """The key in a configuration that OmegaConf loads: the trainer, by Lightning's entry point, switches it on."""
    start(_PLAIN, yaml=with_layout("immutable")).assert_immutable()


@pytest.mark.parametrize("form", ["", "+", "++"])
@pytest.mark.parametrize("yaml", [_YAML, with_layout("moving")], ids=["no-key", "key-in-yaml"])
def test_every_form_of_override(fork: Callable[..., Script], form: str, yaml: str) -> None:
    """Literal, `+` and `++` set the key, whether the configuration has it or not."""
    fork(_HYDRA, f"{form}exp_manager.log_layout=immutable", yaml=yaml).assert_immutable()


def test_the_key_in_the_configuration(fork: Callable[..., Script]) -> None:
    """`log_layout: immutable` in the YAML of a Hydra script."""
    fork(_HYDRA, yaml=with_layout("immutable")).assert_immutable()


@pytest.mark.parametrize("override", ["exp_manager.log_layout=moving", "++exp_manager.log_layout=null"])
def test_the_command_line_switches_off_what_the_configuration_says(fork: Callable[..., Script], override: str) -> None:
    """The key in the YAML, and another value, or none, on the command line."""
    fork(_HYDRA, override, yaml=with_layout("immutable")).assert_moving()


@pytest.mark.parametrize("script", [_HYDRA, _PLAIN], ids=["hydra", "plain"])
def test_the_environment_alone(fork: Callable[..., Script], script: str) -> None:
    """`NEMO_LOG_LAYOUT=immutable` reaches scripts whose configuration says nothing."""
    fork(script, environment={"NEMO_LOG_LAYOUT": "immutable"}).assert_immutable()


def test_an_explicit_key_wins_over_the_environment(fork: Callable[..., Script]) -> None:
    """`log_layout: moving` in a configuration, on a cluster whose environment says `immutable`."""
    fork(_HYDRA, yaml=with_layout("moving"), environment={"NEMO_LOG_LAYOUT": "immutable"}).assert_moving()


def test_nothing_asked_for_is_moving(fork: Callable[..., Script]) -> None:
    """The control: installed, and not asked for; an empty variable is none."""
    fork(_HYDRA, environment={"NEMO_LOG_LAYOUT": ""}).assert_moving()


def test_the_key_of_every_rank_on_the_command_line(fork: Callable[..., Script]) -> None:
    """`exp_manager.log_every_rank=true`, the second key, is accepted literally too."""
    script = fork(_HYDRA, "exp_manager.log_layout=immutable", "exp_manager.log_every_rank=true")
    script.assert_immutable()
    assert list((script.directory / "exp" / "tiny" / "latest").glob("nemo_log_globalrank-0_localrank-0.txt"))


def test_the_key_is_shown_by_hydras_own_listing(fork: Callable[..., Script]) -> None:
    """`--cfg job` prints the configuration with the key, and runs nothing."""
    script = fork(_HYDRA, "exp_manager.log_layout=immutable", "--cfg", "job")
    assert script.code == 0, script.output
    assert "  log_layout: immutable\n" in script.output
    assert not (script.directory / "exp").exists()


@pytest.mark.parametrize(
    ("yaml", "overrides"),
    [
        (_YAML, ["exp_manager.log_layout=immutable"]),
        (with_layout("immutable"), []),
        (None, ["exp_manager.log_layout=immutable", "exp_manager.exp_dir=exp", "exp_manager.name=tiny"]),
    ],
    ids=["command-line", "yaml", "schema-alone"],
)
def test_a_script_with_a_schema(fork: Callable[..., Script], yaml: str | None, overrides: list[str]) -> None:
    """`hydra_runner(schema=…)`, whose dataclass has a field of NeMo's `ExpManagerConfig`.

    The schema is stored before Hydra loads its plugins; a YAML of the same name is checked against it.
    """
    fork(_SCHEMA, *overrides, yaml=yaml).assert_immutable()


def test_a_schema_still_refuses_other_keys(fork: Callable[..., Script]) -> None:
    """A schema refuses what it does not know, in the YAML too."""
    script = fork(_SCHEMA, yaml=f"{_YAML}  log_layot: immutable\n")
    script.assert_refused("Error merging 'app' with schema", "Key 'log_layot' not in 'ExpManagerConfig'")


def test_hydras_compose_api(fork: Callable[..., Script]) -> None:
    """A notebook or a script that composes by itself passes the key as an override."""
    fork(_COMPOSE, "exp_manager.log_layout=immutable").assert_immutable()


def test_enable_switches_a_function_on_that_is_bound_already(fork: Callable[..., Script]) -> None:
    """`immutable_logs.enable()`, after the import of the function and before Hydra or a trainer does the same."""
    script = fork(_CODE.replace("SWITCH_ON", _ENABLE))
    script.assert_immutable()
    assert script.values("STEERED") == ["False", "True"]
    assert script.values("SAME") == ["True"]


def test_importing_the_function_from_here(fork: Callable[..., Script]) -> None:
    """`from immutable_logs.nemo_integration import exp_manager` gives NeMo's own function, switched on."""
    script = fork(_CODE.replace("SWITCH_ON", "from immutable_logs.nemo_integration import exp_manager"))
    script.assert_immutable()
    assert script.values("STEERED") == ["False", "True"]
    assert script.values("SAME") == ["True"]


@pytest.mark.parametrize(
    ("script", "overrides", "yaml", "environment"),
    [
        (_HYDRA, ["exp_manager.log_layout=imutable"], _YAML, {}),
        (_PLAIN, [], with_layout("imutable"), {}),
        (_HYDRA, [], _YAML, {"NEMO_LOG_LAYOUT": "imutable"}),
    ],
    ids=["command-line", "yaml", "environment"],
)
def test_an_unknown_layout_is_refused(
    fork: Callable[..., Script],
    script: str,
    overrides: list[str],
    yaml: str,
    environment: dict[str, str],
) -> None:
    """A misspelt value ends the script; where it stands, what it is and both allowed values are named."""
    refused = fork(script, *overrides, yaml=yaml, environment=environment)
    refused.assert_refused(*environment or ["exp_manager.log_layout"], "'immutable'", "'moving'", "'imutable'")


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("exp_manager.log_layot=immutable", "Could not override 'exp_manager.log_layot'"),
        ("+exp_manager.log_layot=immutable", "Key 'log_layot' not in 'ExpManagerConfig'"),
    ],
)
def test_other_keys_are_refused_as_before(fork: Callable[..., Script], override: str, text: str) -> None:
    """Hydra, and NeMo for what is forced upon Hydra, accept no key beside ours."""
    fork(_HYDRA, override).assert_refused(text)


def test_a_nemo_of_another_form_is_left_alone(fork: Callable[..., Script]) -> None:
    """Where `exp_manager` is not the function that is known, one warning says so and it does what it does."""
    script = fork(_UNKNOWN_NEMO)
    assert script.code == 0, script.output
    assert script.values("LOG_DIR") == ["exp/tiny, {'name': 'x'}, 7"]
    assert script.output.count("The immutable log layout cannot be used here") == 1


@pytest.mark.parametrize("environment", [{}, {"NEMO_LOG_LAYOUT": "immutable"}], ids=["unset", "asked-for"])
def test_a_hydra_application_without_nemo_loads_nothing_heavy(
    start: Callable[..., Script], environment: dict[str, str]
) -> None:
    """Where our plugin is found by an application that has nothing to do with NeMo, nothing changes."""
    script = start(_HYDRA_ALONE, "+size=3", "hydra.run.dir=.", yaml="name: app\n", environment=environment)
    assert script.code == 0, script.output
    assert script.values("CONFIG") == ["{'name': 'app', 'size': 3}"]
    assert script.values("PLUGIN") == ["True"]
    assert script.values("HEAVY") == ["[]"]
    assert set(script.output.splitlines()) == {"CONFIG={'name': 'app', 'size': 3}", "PLUGIN=True", "HEAVY=[]"}


def test_a_hydra_application_without_nemo_refuses_keys_as_before(start: Callable[..., Script]) -> None:
    """Hydra's answer to an unknown key is its own, unless the key is ours."""
    script = start(_HYDRA_ALONE, "exp_manager.log_layot=1", "hydra.run.dir=.", yaml="exp_manager: {name: app}\n")
    assert script.code == 1
    assert "Could not override 'exp_manager.log_layot'" in script.output
    assert "Key 'log_layot' is not in struct" in script.output


def test_a_trainer_without_nemo_is_not_affected(start: Callable[..., Script]) -> None:
    """Lightning's entry point adds no callback, moves nothing and does not load NeMo."""
    script = start(_LIGHTNING_ALONE, environment={"NEMO_LOG_LAYOUT": "immutable"})
    assert script.code == 0, script.output
    assert script.values("CALLBACKS") == ["['TQDMProgressBar', 'ModelSummary', 'ModelCheckpoint']"]
    assert script.values("ROOT") == [str(script.directory)]
    assert script.values("ACTIVATION") == ["True"]
    assert script.values("NEMO") == ["False"]
    assert sorted(path.name for path in script.directory.iterdir()) == ["app.py", "app.yaml"]


def test_the_package_alone_loads_neither_nemo_nor_torch(clean_environment: dict[str, str]) -> None:
    """`import immutable_logs` is cheap: not even Hydra or OmegaConf is loaded."""
    code = "import sys, immutable_logs; print(sorted({name.partition('.')[0] for name in sys.modules}))"
    printed = subprocess.run(
        [sys.executable, "-c", code], env=clean_environment, capture_output=True, text=True, timeout=100, check=True
    ).stdout
    assert "'immutable_logs'" in printed
    for name in ("torch", "nemo", "lightning", "pytorch_lightning", "hydra", "omegaconf", "wrapt", "typer", "rich"):
        assert f"'{name}'" not in printed
