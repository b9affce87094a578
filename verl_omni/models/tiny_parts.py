"""Words and sizes that the tiny random models share."""

WORDS = tuple(
    "a above and below black blue bright cat circle dark dog green house left of on orange photo purple red "  # noqa: SIM905
    "right sky small square the tree triangle two white with yellow".split()
)
TEXT_LENGTH = 16
WIDTH = 32
HIDDEN = 32
# Factor of a VAE's output weights: a random decoder gives nearly grey images, which rewards cannot tell apart, and a
# random encoder of input images nearly equal latents, whose mistakes would not show.
CONTRAST = 8.0
