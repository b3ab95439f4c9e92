"""Shard a plain JAX function over a device mesh, as well as a cost model and an ILP can."""
