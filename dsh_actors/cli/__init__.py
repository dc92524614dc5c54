"""The command line: reads options, drives the harness, and turns outcomes into text and exit codes."""
