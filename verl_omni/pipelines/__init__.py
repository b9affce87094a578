"""A folder per model family."""
