"""`mlxd demo`: a coding agent's day against a daemon of its own, over HTTP as any agent would.

`day` says what is sent, `agent` sends it and reads what the replies say of themselves, `child`
runs the daemon, `report` holds the results. What is printed is in `daemon.views`.
"""
