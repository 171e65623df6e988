"""A real Slurm with two nodes on one machine, wholly inside one directory, on loopback and free ports.

As a program it keeps the cluster up while a command runs, by default the user's shell: ``cluster.py [COMMAND…]``.
Should whoever started it die, the command sees the end of its input, and the cluster goes too.
It needs the Debian packages ``slurm-wlm`` and ``munge``, and nothing outside the directory is touched: no service,
no file below ``/etc``, no other Slurm of this machine. Only its own processes are ended.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "scontrol", "squeue", "scancel", "sinfo")
NODES = ("node1", "node2")
CPUS_PER_NODE = 16
"""As told to Slurm, whatever the machine has, so that jobs of a few tasks run side by side."""

START_LIMIT = 30.0
STOP_LIMIT = 20.0
_MARK = "IMMUTABLE_LOGS_TEST_SLURM"


def missing_programs() -> list[str]:
    """Return which of the needed programs are not installed; daemons may lie outside a user's path."""
    return [name for name in PROGRAMS if _program(name) is None]


class Cluster:
    """A Slurm that lives in one directory.

    Attributes:
        directory: Holds the configuration, the state and the logs of the daemons.
        environment: What a process needs to talk to this cluster.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {"SLURM_CONF": str(directory / "slurm.conf")}

    def start(self) -> None:
        """Start the daemons, and wait until both nodes take jobs.

        Raises:
            RuntimeError: If they do not within `START_LIMIT` seconds; with the end of the daemons' logs.
        """
        for name in ("state", "log", "munge", *NODES, *(f"tmp-{node}" for node in NODES)):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        (self.directory / "munge").chmod(0o700)
        # The socket's directory must be open to every user.
        (self.directory / "munge-socket").mkdir(exist_ok=True)
        (self.directory / "munge-socket").chmod(0o755)
        key = self.directory / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        (self.directory / "slurm.conf").write_text(self._configuration(), encoding="utf-8")
        self._start_daemon(
            "munged",
            "--force",  # a temporary directory is writable for others further up
            f"--key-file={key}",
            f"--socket={self.directory / 'munge-socket' / 'socket'}",
            f"--pid-file={self.directory / 'munge' / 'pid'}",
            f"--log-file={self.directory / 'log' / 'munged.log'}",
            f"--seed-file={self.directory / 'munge' / 'seed'}",
            "--num-threads=2",
        )
        self._start_daemon("slurmctld", "-c")
        for node in NODES:
            self._start_daemon("slurmd", "-N", node)
        deadline = time.monotonic() + START_LIMIT
        while self._run("sinfo", "--noheader", "--Node", "--format=%T").split() != ["idle"] * len(NODES):
            if time.monotonic() > deadline:
                raise RuntimeError(f"Slurm did not start within {START_LIMIT:.0f} s:\n{self._logs()}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End all jobs, then the daemons, then whatever is left of what they started."""
        with suppress(RuntimeError):
            self.cancel_all_jobs()
        for stop in (signal.SIGTERM, signal.SIGKILL):
            for pid in self._processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, stop)
            deadline = time.monotonic() + STOP_LIMIT / 2
            while any(True for _ in self._processes()) and time.monotonic() < deadline:
                time.sleep(0.05)

    def cancel_all_jobs(self) -> None:
        """Cancel every job, and wait until none is left."""
        deadline = time.monotonic() + STOP_LIMIT
        while jobs := self._run("squeue", "--noheader", "--format=%A").split():
            if time.monotonic() > deadline:
                raise RuntimeError(f"The jobs {', '.join(jobs)} did not end within {STOP_LIMIT:.0f} s")
            self._run("scancel", "--signal=KILL", "--full", *jobs)
            self._run("scancel", *jobs)
            time.sleep(0.2)

    def _configuration(self) -> str:
        user = pwd.getpwuid(os.geteuid()).pw_name
        host = socket.gethostname().partition(".")[0]
        controller, *ports = _free_ports(1 + len(NODES))
        directory = self.directory
        nodes = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS_PER_NODE} RealMemory=1000"
            for node, port in zip(NODES, ports, strict=True)
        ]
        return "\n".join(
            (
                "ClusterName=loopback",
                f"SlurmctldHost={host}(127.0.0.1)",
                f"SlurmctldPort={controller}",
                f"SlurmUser={user}",
                f"SlurmdUser={user}",
                "AuthType=auth/munge",
                f"AuthInfo=socket={directory / 'munge-socket' / 'socket'}",
                "CredType=cred/munge",
                f"StateSaveLocation={directory / 'state'}",
                f"SlurmdSpoolDir={directory}/%n",
                f"TmpFS={directory}/tmp-%n",
                f"SlurmctldPidFile={directory / 'slurmctld.pid'}",
                f"SlurmdPidFile={directory}/slurmd-%n.pid",
                f"SlurmctldLogFile={directory / 'log' / 'slurmctld.log'}",
                f"SlurmdLogFile={directory}/log/slurmd-%n.log",
                "MailProg=/bin/true",
                "MpiDefault=none",
                "ProctrackType=proctrack/linuxproc",
                "TaskPlugin=task/none",
                "SelectType=select/cons_tres",
                "SelectTypeParameters=CR_CPU",
                "SlurmdParameters=config_overrides",  # believe the number of CPUs below
                "SchedulerParameters=sched_interval=2,batch_sched_delay=0",
                "JobRequeue=1",
                "ReturnToService=2",
                "KillWait=5",
                "AccountingStorageType=accounting_storage/none",
                "JobAcctGatherType=jobacct_gather/none",
                *nodes,
                f"PartitionName=test Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP",
                "",
            )
        )

    def _start_daemon(self, name: str, *arguments: str) -> None:
        program = _program(name)
        if program is None:
            raise RuntimeError(f"{name} is not installed")
        # With an unchanged environment, but for the mark by which everything that descends from it is found.
        environment = {**os.environ, **self.environment, _MARK: str(self.directory)}
        output = self.directory / "log" / f"{name}.out"
        with output.open("ab") as stream:
            status = subprocess.run(
                [program, *arguments],
                env=environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=START_LIMIT,
            ).returncode
        if status != 0:
            raise RuntimeError(f"{name} ended with status {status}:\n{self._logs()}")

    def _run(self, program: str, *arguments: str) -> str:
        finished = subprocess.run(
            [program, *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=START_LIMIT,
        )
        return finished.stdout

    def _logs(self) -> str:
        tails = []
        for path in sorted((self.directory / "log").iterdir()):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
            tails.append("\n".join((f"--- {path.name}", *lines)))
        return "\n".join(tails)

    def _processes(self) -> Iterator[int]:
        """Yield the daemons, their step managers, and the tasks that kept their environment."""
        needle = f"{_MARK}={self.directory}".encode()
        for entry in os.scandir("/proc"):
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    if needle in Path(entry.path, "environ").read_bytes().split(b"\0"):
                        yield int(entry.name)


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin")))


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        holders = [stack.enter_context(socket.socket()) for _ in range(count)]
        for holder in holders:
            holder.bind(("127.0.0.1", 0))
        return [holder.getsockname()[1] for holder in holders]


def main(arguments: list[str]) -> int:
    """Run a command, by default the user's shell, with a cluster that is up until it ends; return its status."""
    if missing := missing_programs():
        print(f"Missing: {', '.join(missing)}. HINT: apt-get install slurm-wlm munge", file=sys.stderr)
        return 3
    command = arguments or [os.environ.get("SHELL", "/bin/sh")]
    directory = Path(tempfile.mkdtemp(prefix="slurm-"))
    cluster = Cluster(directory)
    try:
        cluster.start()
        print(f"Slurm is up, with its logs in {directory / 'log'}; it ends with this command", file=sys.stderr)
        return subprocess.run(command, env={**os.environ, **cluster.environment}, check=False).returncode
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
