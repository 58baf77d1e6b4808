"""The client with threads."""
