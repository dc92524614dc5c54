"""Agents that agents start: one-shot ones with a result, and ones that can be asked to go on."""
