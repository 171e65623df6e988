"""NeMo's function is led to ours without becoming another one, and nothing global is patched."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import os
import pickle
import pydoc
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError

from immutable_logs import enable
from immutable_logs.errors import ConfigurationError
from immutable_logs.nemo_integration import session
from immutable_logs.nemo_integration.schema import copy_schema, extend_schema
from immutable_logs.nemo_integration.steering import UnsupportedNeMoError, steer, stock_function

_NAMES = ("exp_manager", "error_checks")


def stock_code(module: Any, name: str) -> CodeType:
    """Return what Python makes of a function in the source of a module, which nobody has steered."""
    compiled = compile(Path(module.__file__).read_text(encoding="utf-8"), module.__file__, "exec", dont_inherit=True)
    (found,) = (each for each in compiled.co_consts if isinstance(each, CodeType) and each.co_name == name)
    return found


def stock_twin(module: Any, name: str) -> Any:
    """Return a function as stock NeMo defines it, over the names of the module."""
    function = getattr(module, name)
    code = stock_code(module, name)
    twin = FunctionType(code, vars(module), name, function.__defaults__)
    twin.__annotations__ = function.__annotations__
    return twin


@contextmanager
def reloading(module: Any) -> Iterator[Any]:
    """Reload a module, so that its functions and classes are new and not steered; puts everything back afterwards."""
    before = dict(vars(module))
    try:
        yield importlib.reload(module)
    finally:
        vars(module).clear()
        vars(module).update(before)


@pytest.fixture
def reloaded(nemo: Any) -> Iterator[Any]:
    """NeMo's module as after `importlib.reload`."""
    with reloading(nemo) as module:
        yield module


@pytest.fixture
def experiment_with_old_files(tmp_path: Path) -> Path:
    """An experiment in which stock has a file to move."""
    experiment = tmp_path / "exp" / "tiny"
    experiment.mkdir(parents=True)
    (experiment / "old.txt").write_text("old", encoding="utf-8")
    return experiment


def configuration(tmp_path: Path, **keys: Any) -> dict[str, Any]:
    """Return a configuration that resumes in `exp/tiny`."""
    resume = {"resume_if_exists": True, "resume_ignore_no_checkpoint": True}
    return {"exp_dir": str(tmp_path / "exp"), "name": "tiny", **resume, **keys}


def test_the_function_is_the_same_object(reloaded: Any) -> None:
    """Who has bound the function before has the steered one, since it is the same object."""
    bound_early = {name: getattr(reloaded, name) for name in _NAMES}
    for name, function in bound_early.items():
        assert function.__code__ == stock_code(reloaded, name)
    assert enable() is reloaded
    for name, function in bound_early.items():
        assert getattr(reloaded, name) is function
        assert function.__code__ != stock_code(reloaded, name)


@pytest.mark.parametrize("name", _NAMES)
def test_the_function_looks_as_before(nemo: Any, name: str) -> None:
    """Signature, names, documentation, source, place and `help()` are those of the source."""
    function, twin = getattr(nemo, name), stock_twin(nemo, name)
    plain: Any = vars(pydoc)["plaintext"]
    assert function.__code__ != twin.__code__
    assert inspect.signature(function) == inspect.signature(twin)
    assert inspect.getfullargspec(function) == inspect.getfullargspec(twin)
    assert function.__doc__ == stock_code(nemo, name).co_consts[0]
    assert (function.__name__, function.__qualname__) == (twin.__name__, twin.__qualname__)
    assert function.__module__ == "nemo.utils.exp_manager"
    assert function.__defaults__ == (None,)
    assert function.__kwdefaults__ is None
    assert function.__closure__ is None
    assert vars(function) == {}
    assert inspect.getsource(function) == inspect.getsource(twin)
    assert inspect.getsource(function).startswith(f"def {name}(")
    assert inspect.getsourcelines(function)[1] == function.__code__.co_firstlineno == twin.__code__.co_firstlineno
    assert inspect.getsourcefile(function) == nemo.__file__
    assert pydoc.render_doc(function, renderer=plain) == pydoc.render_doc(twin, renderer=plain)
    assert repr(function).partition(" at ")[0] == f"<function {name}"


@pytest.mark.parametrize("name", _NAMES)
def test_the_function_can_be_pickled_copied_and_wrapped(nemo: Any, name: str) -> None:
    """Pickle and copy give the function itself, and `functools.wraps` sees its signature."""
    function = getattr(nemo, name)
    assert pickle.loads(pickle.dumps(function)) is function  # noqa: S301 - made in this line
    assert copy.deepcopy(function) is function

    @functools.wraps(function)
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, **keywords)

    assert inspect.signature(wrapper) == inspect.signature(stock_twin(nemo, name))
    assert inspect.unwrap(wrapper) is function


@pytest.mark.parametrize("keys", [{}, {"log_layout": "moving"}, {"log_layout": "immutable"}])
def test_tracebacks_show_nemos_lines(
    nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path, keys: dict[str, str]
) -> None:
    """An error that NeMo raises is shown at NeMo's own line, under every layout."""
    with pytest.raises(ValueError, match="cannot pass `log_dir`") as raised:
        nemo.exp_manager(make_trainer(), configuration(tmp_path, summary_writer_kwargs={"log_dir": "x"}, **keys))
    frames = [frame for frame in traceback.extract_tb(raised.value.__traceback__) if frame.filename == nemo.__file__]
    assert [frame.name for frame in frames if frame.name != "error_checks"][-2:] == [
        "exp_manager",
        "configure_loggers",
    ]
    assert frames[-1].line is not None
    assert frames[-1].line.startswith("raise ValueError(")


def test_enabling_twice_changes_nothing(nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path) -> None:
    """A second `enable()` finds everything done: no layer on top of the first, no field twice."""
    before = {name: getattr(nemo, name).__code__ for name in _NAMES}
    fields = [field.name for field in dataclasses.fields(nemo.ExpManagerConfig)]
    assert enable() is nemo
    assert enable() is nemo
    assert all(getattr(nemo, name).__code__ is code for name, code in before.items())
    assert [field.name for field in dataclasses.fields(nemo.ExpManagerConfig)] == fields
    assert nemo.exp_manager(make_trainer(), configuration(tmp_path)) == tmp_path / "exp" / "tiny"


def test_a_reloaded_module_refuses_the_key_until_enabled_again(
    nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path, experiment_with_old_files: Path
) -> None:
    """After `importlib.reload` NeMo is stock, which does not know the key; `enable()` switches it on again."""
    cfg = configuration(tmp_path, log_layout="immutable")
    trainers = [make_trainer(), make_trainer()]  # making one later would enable it
    with reloading(nemo):
        with pytest.raises(ConfigKeyError, match="log_layout"):
            nemo.exp_manager(trainers[0], cfg)
        assert [path.name for path in experiment_with_old_files.iterdir()] == ["old.txt"]

        enable()
        log_dir = nemo.exp_manager(trainers[1], cfg)

    assert log_dir.parent == experiment_with_old_files / "runs"
    assert (experiment_with_old_files / "old.txt").read_text(encoding="utf-8") == "old"


def test_the_next_trainer_enables_a_reloaded_module(
    reloaded: Any, make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    """Lightning's entry point, which every trainer calls, finds a reloaded module and steers it."""
    log_dir = reloaded.exp_manager(make_trainer(), configuration(tmp_path, log_layout="immutable"))
    assert log_dir.parent == tmp_path / "exp" / "tiny" / "runs"


def test_an_unsteered_copy_refuses_to_move(
    nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path, experiment_with_old_files: Path
) -> None:
    """A copy with stock's code, which the schema now lets pass with our key, stops before it moves a file."""
    unsteered = stock_twin(nemo, "exp_manager")
    with pytest.raises(ConfigurationError, match=r"this copy of exp_manager moves files\nHINT: call nemo"):
        unsteered(make_trainer(), configuration(tmp_path, log_layout="immutable"))
    assert [path.name for path in experiment_with_old_files.iterdir()] == ["old.txt"]

    assert unsteered(make_trainer(), configuration(tmp_path)) == experiment_with_old_files
    assert (experiment_with_old_files / "run_0" / "old.txt").is_file()


@pytest.fixture
def call(nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path) -> Callable[[str], tuple[Path, Any]]:
    """Call `exp_manager` under a layout; returns the log directory and the trainer."""

    def call_under(layout: str) -> tuple[Path, Any]:
        trainer = make_trainer()
        return nemo.exp_manager(trainer, configuration(tmp_path, log_layout=layout)), trainer

    return call_under


@pytest.fixture
def wrap(nemo: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Put a wrapper of somebody else around functions of NeMo's module; the list tells which were called."""
    called: list[str] = []

    def wrap_one(name: str) -> None:
        original = getattr(nemo, name)

        @functools.wraps(original)
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            called.append(name)
            return original(*arguments, **keywords)

        monkeypatch.setattr(nemo, name, wrapper)

    def wrap_all(*names: str) -> list[str]:
        for name in names:
            wrap_one(name)
        return called

    return wrap_all


@pytest.mark.parametrize("layout", ["immutable", "moving"])
def test_patches_of_nemos_names_are_honoured(
    nemo: Any,
    call: Callable[[str], tuple[Path, Any]],
    monkeypatch: pytest.MonkeyPatch,
    wrap: Callable[..., list[str]],
    layout: str,
) -> None:
    """What somebody else has put into NeMo's module is what runs, also in the names that we replace."""

    class OwnLogger(nemo.TensorBoardLogger):
        """A user's variant of the logger."""

    monkeypatch.setattr(nemo, "get_git_hash", lambda: (True, "0123456789\n"))
    monkeypatch.setattr(nemo, "get_git_diff", lambda: "the difference")
    monkeypatch.setattr(nemo, "TensorBoardLogger", OwnLogger)
    called = wrap("get_log_dir", "check_resume", "configure_checkpointing")
    log_dir, trainer = call(layout)

    assert called == ["get_log_dir", "check_resume", "configure_checkpointing"]
    assert (log_dir / "git-info.log").read_text(encoding="utf-8") == "commit hash: 0123456789\nthe difference"
    assert type(trainer.logger) is OwnLogger


@pytest.mark.parametrize("layout", ["immutable", "moving"])
def test_wrappers_of_the_steered_functions_are_honoured(
    call: Callable[[str], tuple[Path, Any]],
    tmp_path: Path,
    wrap: Callable[..., list[str]],
    caplog: pytest.LogCaptureFixture,
    layout: str,
) -> None:
    """A wrapper in the place of a steered function runs once and calls it; it is not steered, and not warned of."""
    called = wrap("exp_manager", "error_checks")
    enable()
    log_dir, _ = call(layout)

    assert called == ["exp_manager", "error_checks"]
    home = tmp_path / "exp" / "tiny"
    assert (log_dir.parent if layout == "immutable" else log_dir) == (home / "runs" if layout == "immutable" else home)
    assert not [record for record in caplog.records if record.name.startswith("immutable_logs")]


def test_nothing_global_is_changed_by_a_call(nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path) -> None:
    """After a call under the immutable layout NeMo's module and `os` hold the same objects as before."""
    modules = {name: dict(vars(sys.modules[name])) for name in ("nemo.utils.exp_manager", "os", "nemo.utils")}
    logger_names = set(vars(nemo.logging))
    environment = dict(os.environ)
    nemo.exp_manager(make_trainer(), configuration(tmp_path, log_layout="immutable"))
    for name, before in modules.items():
        after = vars(sys.modules[name])
        # NeMo imports some of its modules in functions, and an import puts a module into its package.
        imported = {key for key in after if after[key] is sys.modules.get(f"{name}.{key}")}
        assert after.keys() - imported == before.keys() - imported
        assert [key for key in before if after[key] is not before[key]] == []
    assert set(vars(nemo.logging)) == logger_names
    changed = {name for name in {*environment, *os.environ} if environment.get(name) != os.environ.get(name)}
    assert changed <= {"_IMMUTABLE_LOGS_PARENT_LAUNCH"}


def test_nothing_global_is_changed_by_a_call_that_fails(
    nemo: Any, make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    """The same after an exception in the middle."""
    before = dict(vars(nemo))
    with pytest.raises(ValueError, match="cannot pass `log_dir`"):
        nemo.exp_manager(
            make_trainer(), configuration(tmp_path, log_layout="immutable", summary_writer_kwargs={"log_dir": "x"})
        )
    assert vars(nemo).keys() == before.keys()
    assert [key for key in before if vars(nemo)[key] is not before[key]] == []


def test_two_layouts_at_the_same_time(
    nemo: Any,
    make_trainer: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    experiment_with_old_files: Path,
) -> None:
    """Two threads, each inside of its call when the other begins and ends its own, do not see each other's names."""
    other = tmp_path / "other" / "tiny"
    other.mkdir(parents=True)
    (other / "old.txt").touch()
    cfgs = {
        "immutable": configuration(tmp_path, log_layout="immutable"),
        "moving": {**configuration(tmp_path), "exp_dir": str(tmp_path / "other")},
    }
    trainers = {layout: make_trainer() for layout in cfgs}
    meeting = threading.Barrier(len(cfgs), timeout=30)
    found: dict[str, Any] = {}

    def met(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wait_first(*arguments: Any, **keywords: Any) -> Any:
            meeting.wait()
            return function(*arguments, **keywords)

        return wait_first

    for name in ("error_checks", "check_resume", "configure_checkpointing", "get_git_hash"):
        monkeypatch.setattr(nemo, name, met(getattr(nemo, name)))

    def call(layout: str) -> None:
        try:
            found[layout] = nemo.exp_manager(trainers[layout], cfgs[layout])
        except BaseException as error:  # noqa: BLE001 - reported below, in the thread of the test
            found[layout] = error
            meeting.abort()

    threads = [threading.Thread(target=call, args=[layout]) for layout in cfgs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found["moving"] == other
    assert sorted(path.name for path in other.iterdir() if path.is_dir()) == ["run_0"]
    assert (other / "run_0" / "old.txt").is_file()
    assert found["immutable"].parent == experiment_with_old_files / "runs"
    assert (experiment_with_old_files / "old.txt").is_file()
    assert not (experiment_with_old_files / "run_0").exists()
    for layout, home in (("moving", other), ("immutable", experiment_with_old_files)):
        trainer = trainers[layout]
        assert Path(trainer.default_root_dir) == found[layout]
        assert Path(trainer.checkpoint_callback.dirpath) == home / "checkpoints"
    assert Path(trainers["immutable"].logger.log_dir) == found["immutable"]
    assert Path(trainers["moving"].logger.save_dir) == tmp_path / "other"


class TestSchema:
    def test_the_class_is_the_same_with_two_fields_more(self, reloaded: Any) -> None:
        """`ExpManagerConfig` stays the object that scripts have bound; all fields keep place, type and default."""
        schema = reloaded.ExpManagerConfig
        before = dataclasses.fields(schema)
        stock_repr, stock_signature = repr(schema()), inspect.signature(schema)
        enable()
        assert reloaded.ExpManagerConfig is schema
        after = dataclasses.fields(schema)
        assert [field.name for field in after] == [*(each.name for each in before), "log_layout", "log_every_rank"]
        for old, new in zip(before, after, strict=False):
            assert (new.type, new.default, new.default_factory) == (old.type, old.default, old.default_factory)
        assert repr(schema()) == stock_repr.removesuffix(")") + ", log_layout=None, log_every_rank=None)"
        parameters = list(inspect.signature(schema).parameters.values())
        assert parameters[: len(before)] == list(stock_signature.parameters.values())
        assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters[len(before) :])
        assert schema.__doc__ == "Experiment Manager config for validation of passed arguments."

    def test_instances_are_made_compared_and_copied_as_before(self, nemo: Any) -> None:
        """Construction by keyword and position, equality, `replace`, pickle; defaults are made for each instance."""
        schema = nemo.ExpManagerConfig
        one = schema(None, "exp", name="tiny", log_layout="immutable")
        assert (one.explicit_log_dir, one.exp_dir, one.name, one.log_layout) == (None, "exp", "tiny", "immutable")
        assert one.log_every_rank is None
        assert one == schema(exp_dir="exp", name="tiny", log_layout="immutable")
        assert one != schema(exp_dir="exp", name="tiny")
        assert schema() == schema()
        assert dataclasses.replace(one, log_layout="moving").log_layout == "moving"
        assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 - made in this line
        assert copy.deepcopy(one) == one
        assert dataclasses.asdict(one)["checkpoint_callback_params"]["save_top_k"] == 3
        assert schema().checkpoint_callback_params is not schema().checkpoint_callback_params
        with pytest.raises(TypeError, match="unexpected keyword argument 'log_layot'"):
            schema(log_layot="immutable")

    def test_structured_configurations_check_the_keys(self, nemo: Any) -> None:
        """OmegaConf takes the keys from the class, from an instance and from a class that has it as a field."""

        @dataclass
        class App:
            exp_manager: Any = dataclasses.field(default_factory=nemo.ExpManagerConfig)

        App.__annotations__["exp_manager"] = nemo.ExpManagerConfig
        for cfg in (
            OmegaConf.structured(nemo.ExpManagerConfig),
            OmegaConf.structured(nemo.ExpManagerConfig(name="x")),
            OmegaConf.structured(App).exp_manager,
        ):
            assert cfg.log_layout is None
            cfg.log_layout = "immutable"
            cfg.log_every_rank = True
            with pytest.raises(ConfigAttributeError):
                cfg.log_layot = "immutable"

    def test_subclasses_know_the_keys_and_keep_what_is_theirs(self, reloaded: Any) -> None:
        """Dataclasses that were derived before, directly or not, with whatever options and methods of their own."""
        stock: Any = reloaded.ExpManagerConfig

        @dataclass
        class Direct(stock):
            team: str = "a"
            tags: list[str] = dataclasses.field(default_factory=lambda: ["x"], metadata={"why": "tests"}, repr=False)
            secret: str = dataclasses.field(default="s", repr=False, compare=False, metadata={"why": "tests"})

            def __repr__(self) -> str:
                return f"Direct of {self.team}"

        class Between(stock):
            pass

        @dataclass
        class Indirect(Between):
            team: str = "b"

        @dataclass(kw_only=True)
        class Required(stock):
            team: str

        @dataclass(eq=False)
        class Compared(stock):
            team: str = "c"

            def __eq__(self, other: object) -> bool:
                return isinstance(other, Compared) and self.team == other.team

            __hash__ = None  # type: ignore[assignment]

        @dataclass(order=True)
        class Ordered(stock):
            team: str = "d"

        @dataclass(init=False)
        class Made(stock):
            team: str = "e"

            def __init__(self, team: str) -> None:
                super().__init__(name=team)
                self.team = team

        enable()

        direct = Direct(log_layout="immutable", name="n", team="t")
        assert (direct.log_layout, direct.name, direct.team, direct.tags) == ("immutable", "n", "t", ["x"])
        assert repr(direct) == "Direct of t"
        assert direct == Direct(log_layout="immutable", name="n", team="t", secret="other")
        assert dataclasses.fields(Direct)[-1].name in {"secret", "log_every_rank"}
        assert {field.name: dict(field.metadata) for field in dataclasses.fields(Direct)}["secret"] == {"why": "tests"}
        assert {field.name: dict(field.metadata) for field in dataclasses.fields(Direct)}["tags"] == {"why": "tests"}
        assert Indirect(log_layout="moving").log_layout == "moving"
        assert OmegaConf.structured(Indirect).log_layout is None
        assert Required(team="t", log_layout="moving").team == "t"
        with pytest.raises(TypeError, match="team"):
            Required()  # type: ignore[call-arg]
        assert Compared(log_layout="moving") == Compared(log_layout="immutable")
        assert Ordered(name="a", log_layout="moving") < Ordered(name="b", log_layout="moving")
        assert Made("x").team == Made("x").name == "x"
        assert Made("x").log_layout is None

    def test_copies_of_the_schema_do_not_know_the_keys(self, nemo: Any) -> None:
        """NeMo's own code works with a schema as it was: it refuses our keys and shows none of them."""
        schema = nemo.ExpManagerConfig
        for stock in (copy_schema(schema), session._stock_schema(nemo)):
            names = [field.name for field in dataclasses.fields(stock)]
            assert names == [name for name in (field.name for field in dataclasses.fields(schema)) if name in names]
            assert {field.name for field in dataclasses.fields(schema)} - set(names) == {
                "log_layout",
                "log_every_rank",
            }
            assert (stock.__name__, stock.__qualname__, stock.__module__, stock.__doc__) == (
                schema.__name__,
                schema.__qualname__,
                schema.__module__,
                schema.__doc__,
            )
            assert not hasattr(stock(), "log_layout")
            with pytest.raises(ConfigKeyError, match="Key 'log_layout' not in 'ExpManagerConfig'"):
                OmegaConf.merge(OmegaConf.structured(stock), {"log_layout": "immutable"})
            plain = {name: value for name, value in dataclasses.asdict(schema()).items() if name in names}
            assert dataclasses.asdict(stock()) == plain

    def test_extending_twice_adds_nothing(self) -> None:
        """A second extension of the same class finds the keys."""

        @dataclass
        class Schema:
            name: str = "x"

        extend_schema(Schema)
        extend_schema(Schema)
        assert [field.name for field in dataclasses.fields(Schema)] == ["name", "log_layout", "log_every_rank"]


class TestSteer:
    def test_only_plain_functions_of_the_same_parameters_are_steered(self) -> None:
        """Everything else is refused before anything is changed, and says what was expected and found."""

        def shim(trainer: Any, cfg: Any = None) -> Any:
            return None

        def other(trainer: Any, config: Any = None) -> Any:
            return "other"

        def closing(trainer: Any, cfg: Any = None) -> Any:
            return shim

        for function, text in (
            (other, r"with the parameters \['trainer', 'cfg'\], found \['trainer', 'config'\]"),
            (closing, "not supported"),
            (functools.partial(other), "expected a plain Python function"),
            (len, "expected a plain Python function"),
        ):
            with pytest.raises(UnsupportedNeMoError, match=text):
                steer(function, shim)
        assert other(None) == "other"
        assert closing(None) is shim

    def test_the_stock_function_stays_at_hand(self) -> None:
        """`stock_function` does what was done before, with names replaced for that one callable."""

        def function(trainer: Any, cfg: Any = None) -> Any:
            return Path(trainer, cfg)

        def shim(trainer: Any, cfg: Any = None) -> Any:
            return "led elsewhere"

        steer(function, shim)
        steer(function, shim)
        assert function("a", "b") == "led elsewhere"
        assert stock_function(function)("a", "b") == Path("a", "b")
        assert stock_function(function, {"Path": lambda *parts: parts})("a", "b") == ("a", "b")
        assert stock_function(function)("a", "b") == Path("a", "b")
        assert stock_function(len) is len


def _has_nemo_logger() -> bool:
    """Tell whether NeMo's second front door can be imported; finding it imports the package that holds it."""
    try:
        return importlib.util.find_spec("nemo.lightning.nemo_logger") is not None
    except ImportError:
        return False


@pytest.mark.skipif(
    not _has_nemo_logger(),
    reason="this NeMo has no nemo.lightning.nemo_logger (removed in 3.0), or it lacks megatron (2.4)",
)
class TestNeMoLogger:
    @pytest.fixture
    def logger_class(self, nemo: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
        """NeMo's other front door, of which no use has been warned of yet."""
        from immutable_logs.nemo_integration.activation import activate

        module = importlib.import_module("nemo.lightning.nemo_logger")
        activate()
        monkeypatch.setattr(session._state, "has_warned_of_nemo_logger", False)
        return module.NeMoLogger

    def test_one_warning_where_the_environment_asks_for_the_layout(
        self,
        logger_class: Any,
        make_trainer: Callable[..., Any],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """`NEMO_LOG_LAYOUT` does not reach `NeMoLogger`, which says so once and does what it did."""
        monkeypatch.setenv("NEMO_LOG_LAYOUT", "immutable")
        for _ in range(2):
            state = logger_class(name="n", log_dir=str(tmp_path), version="v").setup(make_trainer())
            assert state.log_dir == tmp_path / "n" / "v"
        warned = [record for record in caplog.records if record.name.startswith("immutable_logs")]
        assert [record.levelname for record in warned] == ["WARNING"]
        assert "NeMoLogger" in warned[0].getMessage()

    def test_no_word_where_nothing_asks_for_it(
        self,
        logger_class: Any,
        make_trainer: Callable[..., Any],
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Without the variable nothing is said."""
        logger_class(name="n", log_dir=str(tmp_path), version="v").setup(make_trainer(), resume_if_exists=True)
        assert not [record for record in caplog.records if record.name.startswith("immutable_logs")]

    def test_a_subclass_may_call_the_original(
        self, logger_class: Any, make_trainer: Callable[..., Any], tmp_path: Path
    ) -> None:
        """`super().setup()` in a subclass gets to NeMo's own code."""

        class OwnLogger(logger_class):
            def setup(self, *arguments: Any, **keywords: Any) -> Any:
                return super().setup(*arguments, **keywords)

        state = OwnLogger(name="n", log_dir=str(tmp_path), version="v").setup(make_trainer())
        assert state.log_dir == tmp_path / "n" / "v"
