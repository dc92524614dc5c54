"""dsh_actors: an agent harness whose agents are actors and whose only truth is the session log.

Importing this package has no effect: nothing is patched, started or read.
"""

__version__ = "0.1.0"
