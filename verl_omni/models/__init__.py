"""Models made by the project itself: a tiny random one of each family, and the shapes example."""
