"""`python -m baton`."""

from baton.cli.main import main

main()
