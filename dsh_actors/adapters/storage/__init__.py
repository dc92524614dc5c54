"""Where sessions are kept: compressed segments on disk, or the memory of this process."""
