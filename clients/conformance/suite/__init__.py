"""Parts of the runner."""
