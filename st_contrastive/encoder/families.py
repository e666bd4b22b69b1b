"""What is known of families of encoders, by the name of their configuration or of their modules."""

from __future__ import annotations

#: Families whose states of a text don't depend on the padding behind it.
IGNORE_PADDING = frozenset({
    "albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta",
})  # fmt: skip
#: Names of the tables of learned positions: BERT's, GPT-2's, GPT's, and that of OPT and BART.
POSITION_TABLES = ("position_embeddings", "wpe", "positions_embed", "embed_positions")
