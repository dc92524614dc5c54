"""The actor runtime on Pykka and gevent: the only package that imports them. Importing it patches nothing."""
