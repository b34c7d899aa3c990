"""A SLURM of one node, this machine, without systemd."""

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers import HANGS

SLURM = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MailProg=/bin/true
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=64000 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def running_slurm() -> Iterator[dict[str, str]]:
    """Environment of commands for a SLURM that runs within the context; skips the test without."""
    programs = ("munged", "slurmctld", "slurmd")
    paths = {name: shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in programs}
    if absent := [name for name, path in paths.items() if path is None]:
        pytest.skip(f"{absent[0]} is not installed: apt-get install slurm-wlm munge")
    if find_spec("snakemake_executor_plugin_cluster_generic") is None:
        pytest.skip("snakemake-executor-plugin-cluster-generic is not installed")
    folder, host = Path(tempfile.mkdtemp(prefix="slurm")), socket.gethostname()
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o400)
    # a device that every machine has stands for its GPUs
    (folder / "gres.conf").write_text(f"NodeName={host} Name=gpu File=/dev/null,/dev/zero\n")
    config, ports = folder / "slurm.conf", (free_port(), free_port())
    config.write_text(SLURM.format(host=host, folder=folder, user=getpass.getuser(), ports=ports))
    environ = {**os.environ, "SLURM_CONF": str(config)}
    files = [("key-file", "key"), ("socket", "munge.socket"), ("pid-file", "munge.pid")]
    files += [("log-file", "munge.log"), ("seed-file", "munge.seed")]
    munge = [f"--{flag}={folder / name}" for flag, name in files]
    daemons = []
    try:
        flags = (["--foreground", "--force", *munge], ["-D"], ["-D", "-N", host])
        for name, own in zip(programs, flags, strict=True):
            log, command = (folder / f"{name}.out").open("w"), [str(paths[name]), *own]
            daemons.append(subprocess.Popen(command, env=environ, stdout=log, stderr=log))
            time.sleep(1)
        deadline, state = time.monotonic() + HANGS, ""
        while not state.startswith("idle"):
            assert time.monotonic() < deadline, (folder / "slurmctld.out").read_text()[-2000:]
            time.sleep(0.2)
            command = ["sinfo", "--noheader", "--format=%t"]
            state = subprocess.run(command, env=environ, capture_output=True, text=True).stdout
        yield environ
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(HANGS)
        shutil.rmtree(folder)
