"""Thin shells around the core: each owns a mailbox, interprets effects, and holds no rules."""
