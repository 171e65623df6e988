from __future__ import annotations

from pathlib import Path

import pytest

from immutable_logs.demo.launches import LaunchFailedError, launch_environment, run_launch


def ignore(line: str) -> None:
    """Take no interest in what a launch prints."""


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def script(tmp_path: Path, code: str) -> Path:
    """Write a script to launch in place of the training."""
    path = tmp_path / "script.py"
    path.write_text(code, encoding="utf-8")
    return path


def test_the_output_is_kept_and_the_last_line_told(tmp_path: Path) -> None:
    """Everything that a launch prints is in the file, and what it prints last is told meanwhile."""
    told: list[str] = []
    code = "import sys, time\nprint('one')\nprint('two', file=sys.stderr)\ntime.sleep(1)\nprint(*sys.argv[1:])\n"

    launch = run_launch(
        ["a.b=c", "d e"],
        directory=tmp_path,
        output=tmp_path / "output.txt",
        on_line=told.append,
        script=script(tmp_path, code),
    )

    assert (tmp_path / "output.txt").read_text(encoding="utf-8") == "one\ntwo\na.b=c d e\n"
    assert "two" in told
    assert launch.command == "python script.py a.b=c 'd e'"
    assert launch.seconds >= 1


def test_a_failed_launch_shows_the_end_of_its_output(tmp_path: Path) -> None:
    """The error has the exit code, the file, and the last lines, of which the reason is one."""
    code = "print('first')\nfor number in range(50): print('line', number)\nraise SystemExit(7)\n"

    with pytest.raises(LaunchFailedError) as failed:
        run_launch([], directory=tmp_path, output=tmp_path / "out.txt", on_line=ignore, script=script(tmp_path, code))

    message = str(failed.value)
    assert f"ended with exit code 7; the end of {tmp_path / 'out.txt'}" in message
    assert message.endswith("  | line 49")
    assert "first" not in message
    assert failed.value.output == tmp_path / "out.txt"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
@pytest.mark.parametrize("ignores", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_a_hanging_launch_is_ended_with_its_ranks(tmp_path: Path, ignores: str) -> None:
    """After the time limit neither the first rank nor its children are left, even if they ignore SIGTERM."""
    code = (
        "import os, signal, subprocess, sys, time\n"
        f"{ignores}\n"
        "child = subprocess.Popen([sys.executable, '-c', "
        f"'import signal, time\\n{ignores}\\nprint(1, flush=True)\\ntime.sleep(600)'])\n"
        "open('pids', 'w').write(f'{os.getpid()} {child.pid}')\n"
        "time.sleep(600)\n"
    )

    with pytest.raises(LaunchFailedError, match="did not end within 2 s"):
        run_launch(
            [],
            directory=tmp_path,
            output=tmp_path / "out.txt",
            on_line=ignore,
            script=script(tmp_path, code),
            timeout=2,
        )

    pids = [int(pid) for pid in (tmp_path / "pids").read_text(encoding="ascii").split()]
    assert len(pids) == 2
    assert not any(is_alive(pid) for pid in pids)


def test_a_rank_that_ends_a_moment_later_may_do_so(tmp_path: Path) -> None:
    """The other ranks of a launch that ended well are not cut short."""
    child = "import time; time.sleep(1); open('late', 'w').write('done')"
    code = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {child!r}])\n"

    run_launch([], directory=tmp_path, output=tmp_path / "out.txt", on_line=ignore, script=script(tmp_path, code))

    assert (tmp_path / "late").read_text(encoding="ascii") == "done"


def test_the_environment_has_no_launcher_and_no_devices() -> None:
    """The demo is started by hand on one machine, even from inside a Slurm job or another training."""
    environ = {
        "PATH": "/bin",
        "HOME": "/home/user",
        "OMP_NUM_THREADS": "3",
        "SLURM_JOB_ID": "1",
        "SLURM_NTASKS": "8",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "MASTER_ADDR": "elsewhere",
        "MASTER_PORT": "1",
        "TORCHELASTIC_RUN_ID": "none",
        "NEMO_EXPM_VERSION": "5",
        "NEMO_LOG_LAYOUT": "moving",
        "IMMUTABLE_LOGS_LAUNCH_ID": "x",
        "_IMMUTABLE_LOGS_PARENT_LAUNCH": "{}",
        "CUDA_VISIBLE_DEVICES": "0",
    }

    made = launch_environment(environ)

    assert {name: made[name] for name in ("PATH", "HOME", "OMP_NUM_THREADS")} == {
        "PATH": "/bin",
        "HOME": "/home/user",
        "OMP_NUM_THREADS": "3",
    }
    assert made["CUDA_VISIBLE_DEVICES"] == ""
    assert made["MASTER_ADDR"] == "127.0.0.1"
    assert not {name for name in made if name.startswith(("SLURM", "TORCHELASTIC", "_IMMUTABLE", "IMMUTABLE"))}
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "NEMO_EXPM_VERSION", "NEMO_LOG_LAYOUT"} & set(made)
