"""A server process over the stand-in engine: `python stub_server.py JSON` (keys config, stub, restart_engine)."""

from __future__ import annotations

import json
import sys

from baton.cli.main import run_reporting
from baton.cli.serve import Monitoring, run_server
from baton.cluster.launch import EngineLaunch
from baton.server.config import ServerConfig


def main() -> None:
    given = json.loads(sys.argv[1])
    launch = EngineLaunch(module="baton.engine.stub_process", options=json.dumps(given["stub"]))
    config = ServerConfig(**given["config"])
    sys.exit(run_server(config, launch, Monitoring(), restart_engine=given["restart_engine"]))


if __name__ == "__main__":
    run_reporting(main)
