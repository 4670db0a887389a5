"""The routes, one module for each resource; every module has a ``router``."""
