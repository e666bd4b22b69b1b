"""Everything that is done with the user's model, which belongs to somebody else.

The losses need more of a SentenceTransformer than ``model(features)``: facts about it, several views of a batch in one
pass, rows in groups or chunks, single layers, copies. How that is done depends on the model's family, on its wrappers
and on semi-private parts of sentence-transformers and transformers. This package keeps all of it in one place, so that
the losses above see sentences go in and vectors come out.
"""

from st_contrastive.encoder.features import (
    CorruptedTokens,
    Features,
    is_unpadded,
    text_features,
    token_arguments,
    with_texts,
)
from st_contrastive.encoder.forward import Encoded, encode, encode_with, pool, pool_as_model
from st_contrastive.encoder.model import (
    POOLING_MODES,
    dropout_setting,
    embedding_width,
    embeds_first_token,
    encoder_of,
    has_dropout,
    input_embedding_width,
    is_causal,
    is_saved_model,
    max_positions,
    position_table,
    require_positions,
    require_text_encoder,
    require_trainable,
    text_module,
    token_width,
    tokenizer_of,
    unwrap,
    wrapper_chain,
)

__all__ = [
    "POOLING_MODES",
    "CorruptedTokens",
    "Encoded",
    "Features",
    "dropout_setting",
    "embedding_width",
    "embeds_first_token",
    "encode",
    "encode_with",
    "encoder_of",
    "has_dropout",
    "input_embedding_width",
    "is_causal",
    "is_saved_model",
    "is_unpadded",
    "max_positions",
    "pool",
    "pool_as_model",
    "position_table",
    "require_positions",
    "require_text_encoder",
    "require_trainable",
    "text_features",
    "text_module",
    "token_arguments",
    "token_width",
    "tokenizer_of",
    "unwrap",
    "with_texts",
    "wrapper_chain",
]
