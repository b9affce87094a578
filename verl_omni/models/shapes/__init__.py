"""The example model: pictures of a few shapes, a checker of them, and a small SD3 that draws them."""
