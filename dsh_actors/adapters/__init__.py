"""The outside world behind the ports, as plain blocking code: one folder a port."""
