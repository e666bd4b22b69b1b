"""Everything that is done with the user's model.

The losses need more of a SentenceTransformer than ``model(features)``: facts about it, several views of a batch in one
pass, groups of rows, single layers, copies. All that depends on the model's family, on its wrappers and on semi-private
parts of sentence-transformers is in this package.
"""
