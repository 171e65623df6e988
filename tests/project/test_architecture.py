"""Who may import whom, who may change the file system, who names paths: the architecture, read from the code."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import immutable_logs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Children

PURE = {"comparison", "errors", "hparams_file", "launch", "layout", "records", "redaction", "retention", "run_id"}
FILE_SYSTEM = {
    "agreement",
    "durable_files",
    "last_words",
    "latest_link",
    "launchers",
    "lineage",
    "log_reading",
    "manifest",
    "mounts",
    "process",
    "provenance",
    "rank_entries",
    "regular_files",
    "run_contents",
    "run_traces",
    "tree_removal",
}
OPERATIONS = {
    "catalog",
    "check_filesystem",
    "curves",
    "pruning",
    "repair",
    "run",
    "run_comparison",
    "run_failure",
    "verification",
}

HEAVY = {"nemo", "lightning", "pytorch_lightning", "lightning_fabric", "torch", "hydra", "tensorboard", "wrapt"}
ALLOWED_WHEN_CALLED = {"immutable_logs.launchers.torchrun": {"torch"}, "immutable_logs.curves": {"tensorboard"}}
LINKS_AND_RENAMES = {"rename", "renames", "replace", "link", "symlink", "fsync", "fdatasync"}
REMOVALS = {"remove", "unlink", "rmdir", "removedirs", "rmtree"}


def package(name: str) -> Path:
    """Return the directory of an installed package."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def modules(name: str) -> dict[str, ast.Module]:
    """Return the parsed modules of a package by their dotted names below it."""
    root = package(name)
    found = {}
    for path in sorted(root.rglob("*.py")):
        dotted = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        found[dotted] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return found


OURS = modules("immutable_logs")
MIGRATION = modules("migration")
EVERYTHING = {
    **{f"immutable_logs.{name}": tree for name, tree in OURS.items()},
    **{f"migration.{name}": tree for name, tree in MIGRATION.items()},
}


def imports(tree: ast.AST, *, top_level_only: bool = False) -> Iterator[str]:
    """Yield what a module imports when it runs, names of `from` imports included; typing imports do not count."""
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            nodes.extend(node.orelse)
            continue
        if top_level_only and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        nodes.extend(ast.iter_child_nodes(node))


def own_imports(name: str) -> set[str]:
    """Return the modules of `immutable_logs` that one of them imports, by their first name below the package."""
    return {
        parts[1]
        for parts in (target.split(".") for target in imports(OURS[name]))
        if parts[0] == "immutable_logs" and len(parts) > 1 and parts[1] != name.partition(".")[0]
    }


def calls(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield receiver and name of every call of an attribute, such as ("os", "rename")."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield ast.unparse(node.func.value), node.func.attr


def test_every_module_of_the_core_has_a_layer() -> None:
    """A new module at the top of the package is put into one of the layers here."""
    top = {name.split(".")[0] for name in OURS} - {"__init__", "cli", "demo", "nemo_integration", "report"}

    assert top == PURE | FILE_SYSTEM | OPERATIONS


@pytest.mark.parametrize("name", sorted(PURE))
def test_pure_modules_import_only_pure_ones(name: str) -> None:
    """Ids, paths and records know nothing of files, clocks and environments."""
    assert own_imports(name) <= PURE
    standard = {target.split(".")[0] for target in imports(OURS[name])}
    assert not standard & {"fcntl", "socket", "subprocess", "shutil", "tempfile", "random", "threading", "logging"}
    for receiver, call in calls(OURS[name]):
        assert (receiver, call) not in {("time", "time"), ("os", "urandom"), ("os", "getpid"), ("datetime", "now")}
        assert call not in {
            "read_text",
            "read_bytes",
            "write_text",
            "write_bytes",
            "exists",
            "stat",
            "lstat",
            "is_dir",
        }
    assert "os.environ" not in ast.unparse(OURS[name])


@pytest.mark.parametrize("name", [name for name in OURS if name.split(".")[0] in FILE_SYSTEM])
def test_modules_of_the_file_system_do_not_import_operations(name: str) -> None:
    """Layers point downwards only."""
    assert own_imports(name) <= PURE | FILE_SYSTEM


def test_durable_files_knows_nothing_of_the_layout() -> None:
    """Its verbs are about any file."""
    assert own_imports("durable_files") == {"errors", "regular_files"}


@pytest.mark.parametrize("name", [name for name in OURS if name.split(".")[0] in OPERATIONS])
def test_operations_do_not_import_the_front_ends(name: str) -> None:
    """Neither the command line nor NeMo is needed to start or list runs, and neither of the two needs the other."""
    allowed = PURE | FILE_SYSTEM | (OPERATIONS if name not in {"run", "catalog"} else set())
    assert own_imports(name) <= allowed


@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_only_prune_removes_trees(name: str) -> None:
    """What removes a directory with all that is in it is reached by one module alone; looking into it is harmless."""
    if name != "immutable_logs.pruning":
        removing = {
            f"immutable_logs.tree_removal.{verb}" for verb in ("remove_tree", "remove_link", "remove_if_empty")
        }
        assert not removing & set(imports(EVERYTHING[name]))


@pytest.mark.parametrize("name", [name for name in OURS if name.split(".")[0] in {"catalog", "verification"}])
def test_what_only_reads_imports_no_writing_function(name: str) -> None:
    """Neither a listing nor a verification can write by mistake."""
    parts = {part for target in imports(OURS[name]) for part in target.split(".")}

    writing = {"agreement", "append_record", "switch_latest", "manifest_lock", "create_exclusive"}
    assert not parts & {"run", "repair", *writing}
    used = {call for receiver, call in calls(OURS[name]) if receiver == "durable_files"}
    assert used <= {"read_bytes", "read_link", "is_link_hidden"}


@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_only_the_integration_imports_nemo_and_torch(name: str) -> None:
    """The core, the command line and the migration run where none of them is installed."""
    if name.startswith(("immutable_logs.nemo_integration", "immutable_logs.demo.train")):
        return
    heavy = {target.split(".")[0] for target in imports(EVERYTHING[name])} & HEAVY

    assert heavy <= ALLOWED_WHEN_CALLED.get(name, set())
    assert not {target.split(".")[0] for target in imports(EVERYTHING[name], top_level_only=True)} & HEAVY


@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_only_durable_files_links_renames_and_syncs(name: str) -> None:
    """One module is the seam at which faults are injected."""
    if name == "immutable_logs.durable_files":
        return
    for receiver, call in calls(EVERYTHING[name]):
        assert not (receiver == "os" and call in LINKS_AND_RENAMES), f"os.{call}"
        assert call not in {"symlink_to", "hardlink_to", "rename"}, f"{receiver}.{call}"
        assert (receiver, call) != ("shutil", "move")
    assert not {target for target in imports(EVERYTHING[name]) if target.startswith("os.") and target != "os.path"}


REMOVERS = {
    "immutable_logs.check_filesystem": "takes away what it tried the mount with",
    "immutable_logs.tree_removal": "is what `prune` deletes with",
    "immutable_logs.report.output": "takes away a page that could not be written whole",
    "migration": "removes only its own additions, and old names in `undo` and `finalize`",
}


@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_only_explicit_commands_delete(name: str) -> None:
    """Nothing that a training runs removes a name."""
    if any(f"{name}.".startswith(f"{remover}.") for remover in REMOVERS):
        return
    for receiver, call in calls(EVERYTHING[name]):
        assert call not in REMOVALS or receiver not in {"os", "shutil"}, f"{receiver}.{call}"
        assert call not in {"unlink", "rmdir", "rmtree"}, f"{receiver}.{call}"


NAMES_ON_DISK = {
    "runs",
    "latest",
    "run.json",
    "finished.json",
    "manifest.jsonl",
    "ranks",
    "requeue",
    ".launches",
    ".latest",
    "latest.txt",
}


@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_only_the_layout_names_paths(name: str) -> None:
    """No other module puts a path together from the names on disk."""
    if name == "immutable_logs.layout":
        return
    for node in ast.walk(EVERYTHING[name]):
        parts: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            parts = [node.right]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            parts = node.args if node.func.attr in {"join", "joinpath", "with_name"} else []
        for part in parts:
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                assert not NAMES_ON_DISK & set(part.value.split("/")), ast.unparse(node)


@pytest.mark.parametrize("name", sorted(OURS))
def test_migration_is_never_imported_by_the_library(name: str) -> None:
    """It stands on the library, and the command line finds it as a plug-in."""
    assert not {target for target in imports(OURS[name]) if target.split(".")[0] == "migration"}


@pytest.mark.parametrize("name", [name for name in sorted(OURS) if not name.startswith(("cli", "demo"))])
def test_library_never_prints_and_never_configures_logging(name: str) -> None:
    """A training's output is the user's."""
    for node in ast.walk(OURS[name]):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in {"print", "logging.basicConfig", "sys.stdout.write", "sys.stderr.write"}
            # Only the end of a run needs handlers; never SIGUSR1: Lightning then skips its own and requeueing is dead.
            assert called != "signal.signal" or name == "nemo_integration.run_end"
    assert "SIGUSR1" not in {node.attr for node in ast.walk(OURS[name]) if isinstance(node, ast.Attribute)}


def test_public_names_are_these() -> None:
    """The interface changes only on purpose."""
    assert immutable_logs.__all__ == ["Experiment", "ImmutableLogsError", "Run", "enable", "start_run"]
    assert immutable_logs.__version__ == version("immutable-logs")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = immutable_logs.nothing


def test_package_says_that_it_is_typed() -> None:
    """Type checkers of users look for the marker."""
    assert (package("immutable_logs") / "py.typed").exists()
    assert (package("migration") / "py.typed").exists()


@pytest.mark.parametrize(
    "name", ["immutable_logs", "migration", "immutable_logs.launchers.torchrun", "immutable_logs.curves"]
)
def test_import_loads_nothing_heavy(children: Children, name: str) -> None:
    """Neither NeMo, torch and Lightning nor what only the command line needs."""
    code = "import importlib\nimportlib.import_module(sys.argv[1])\nreport(loaded=sorted(sys.modules))"
    loaded = {module.split(".")[0] for module in children.start(code, name).report()["loaded"]}

    assert not loaded & (HEAVY | {"omegaconf", "pathlib2", "rich", "typer", "click", "numpy"})


def test_import_has_no_effect(tmp_path: Path) -> None:
    """No file, no output, no handler, no variable."""
    code = (
        "import json, logging, os, signal\n"
        "def state(): return [dict(os.environ), logging.root.handlers[:], signal.getsignal(signal.SIGTERM)]\n"
        "before = state()\n"
        "import immutable_logs\n"
        "print(json.dumps(before == state()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path
    )

    assert json.loads(done.stdout) is True
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []
