"""Models made by the project itself: a tiny random SD3 and the shapes example."""
