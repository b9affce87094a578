"""Runs in a replica's server process: the engine, its HTTP app, requests, outputs and lifecycle control."""
