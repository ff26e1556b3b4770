"""Starts processes and keeps them: engines, and the server in front of one."""
