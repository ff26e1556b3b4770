"""Looks at this machine for what a doctor has to know."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from baton.cluster.doctor_facts import MachineFacts
from baton.cluster.fleet_plan import this_machine
from baton.engine.probe import Probe

_PORTS = (8000, 8080)  # of a server and of a router
_PROBE_S = 120.0
_SHARED_MEMORY = Path("/dev/shm")


def gather_machine(backends: Sequence[str]) -> MachineFacts:
    """What is known of this machine. Takes the seconds that loading torch takes.

    Args:
        backends: of NIXL, to be started.
    """
    probe = run_probe(backends)
    machine = this_machine(os.environ)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return MachineFacts(
        python=sys.version_info[:3],
        num_cores=machine.num_cores,
        torch=probe.torch,
        torch_error=probe.torch_error,
        gpus=probe.gpus,
        num_gpu_devices=len(machine.gpus),
        backends=tuple(backends),
        nixl_error=probe.nixl_error,
        shared_memory_bytes=shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else None,
        open_files=None if hard == resource.RLIM_INFINITY else hard,
        taken_ports=tuple(port for port in _PORTS if not is_free(port)),
        disk_free_bytes=disk_free_bytes(),
    )


def disk_free_bytes() -> dict[str, int]:
    """Where logs and models go by default, by folder."""
    return {folder: shutil.disk_usage(folder).free for folder in (tempfile.gettempdir(), str(Path.home()))}


def run_probe(backends: Sequence[str]) -> Probe:
    """Of what loads torch and NIXL, in a process of its own."""
    command = [sys.executable, "-m", "baton.engine.probe", *backends]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_S, check=False)
        return msgspec.json.decode(done.stdout.strip().rpartition("\n")[2], type=Probe)
    except subprocess.TimeoutExpired:
        reason = f"loading took more than {_PROBE_S:.0f} s"
    except msgspec.DecodeError:
        reason = f"the process that tried ended with code {done.returncode}: {done.stderr.strip()[-200:]}"
    return Probe(torch_error=reason, nixl_error=reason)


def is_free(port: int) -> bool:
    """Whether a server could listen there, on any address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
