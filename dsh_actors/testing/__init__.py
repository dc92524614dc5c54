"""The shipped test kit: what a test, or a person without a key, needs to run the harness."""
