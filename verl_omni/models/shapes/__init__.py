"""The example model: a small SD3 for images of coloured shapes, its prompts, and a checker of its images."""
