"""Sharding rules, one per primitive."""
