"""What is under test: the protocol, and the backends that speak it."""
