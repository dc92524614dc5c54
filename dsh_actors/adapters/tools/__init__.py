"""The built-in tools, one module each, and what they share. Plain blocking code; no actors here."""
