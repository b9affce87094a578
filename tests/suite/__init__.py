"""The runner of the test suite: stages, the order they run in, and how long each takes."""
