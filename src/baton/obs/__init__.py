"""Logs, figures, metrics and traces. Imports core only."""
