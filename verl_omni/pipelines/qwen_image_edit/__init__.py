"""Qwen-Image-Edit and Qwen-Image-Edit-Plus: an image from a prompt and an input image."""
