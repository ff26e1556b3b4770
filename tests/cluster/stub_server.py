"""A server process over the stand-in engine: `python stub_server.py JSON`, as `serving.stub_server` makes it."""

from __future__ import annotations

import json
import sys
from functools import partial

from baton.cli.main import run_reporting
from baton.cli.serve import Monitoring, run_server
from baton.cluster.launch import EngineLaunch
from baton.cluster.registration import Registration, keep_registered
from baton.server.config import ServerConfig


def main() -> None:
    given = json.loads(sys.argv[1])
    launch = EngineLaunch(module="baton.engine.stub_process", options=json.dumps(given["stub"]))
    config = ServerConfig(**given["config"])
    announce = None
    if given["router"]:
        registration = Registration(router=given["router"], router_key="sesame", api_key="own")
        announce = partial(keep_registered, registration)
    sys.exit(run_server(config, launch, Monitoring(), restart_engine=given["restart_engine"], announce=announce))


if __name__ == "__main__":
    run_reporting(main)
