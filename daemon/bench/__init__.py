"""`mlxd bench`: coding-agent traffic replayed against a fresh daemon, counted against a floor.

The traffic is data (`texts`, `traffic`, `scenarios`), the floor is arithmetic on token ids
(`floor`), the servers are processes (`peers`) spoken to over HTTP (`client`). `run` ties them
together and returns a `report`; nothing here prints.
"""
