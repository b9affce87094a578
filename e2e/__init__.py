"""Real clusters for tests, and the tests that run on them."""
