"""Meshes, hardware, collectives, shardings and what they cost, in seconds and bytes."""
