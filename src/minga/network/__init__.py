"""Connections, messages and the board: how peers reach and know each other."""
