"""Secure training: robust aggregation, verification and bans."""
