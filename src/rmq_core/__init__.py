"""Apache RocketMQ in Python: protocol, network and name server."""
