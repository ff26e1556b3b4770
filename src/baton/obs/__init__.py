"""Logs, later metrics and timelines. Imports core only."""
