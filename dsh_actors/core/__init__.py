"""The pure core: every decision of the harness, with no I/O, no clock and no greenlet."""
