"""The command line. Imports heavy packages only in the command that needs them."""
