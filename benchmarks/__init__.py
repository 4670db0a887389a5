"""What the gateway costs against a direct call to the same provider: `python -m benchmarks` (see `benchmarks/__main__.py`).

Four kinds of processes, all on loopback: the gateway, pinned to a core of its own where there are two, and on the others the provider
(the simulator), the load client and an embedded Postgres, durable as in production. Everything of the gateway is on: authentication, the
tenant's chain, persistence, the event log, JSON logs.
"""
