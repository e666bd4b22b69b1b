"""Access to the user's model: its properties, forward passes, single layers and copies.

A loss needs more from a SentenceTransformer than ``model(features)``. This package holds all code that depends on the
encoder's family, on the model's wrappers, or on semi-private parts of sentence-transformers.
"""
