from __future__ import annotations

import numpy as np
import pytest
import torch

from st_contrastive.evaluation import FirstLastAverage, Whitened, baselines
from tests.evaluation.encoders import Letters


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet"])
def test_first_last_average_is_the_loop(build, sentences, family):
    model = build(family, "mean").eval()
    found = FirstLastAverage(model).encode(sentences, batch_size=3)
    for sentence, vector in zip(sentences, found, strict=True):
        batch = model.preprocess([sentence])
        inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
        with torch.no_grad():
            states = model[0].model(**inputs, output_hidden_states=True).hidden_states
        assert len(states) == 5  # the embeddings, and four layers
        expected = torch.stack([(states[1][0] + states[4][0]) / 2]).mean(dim=1)[0]
        np.testing.assert_allclose(vector, expected.numpy(), atol=1e-5)
    assert not np.allclose(found, model.encode(sentences), atol=1e-2)


def test_first_last_average_reads_as_the_model_does(build, sentences):
    model = build("bert", "mean").eval()
    plain = FirstLastAverage(model)
    prefixed = plain.encode([f"the cat {sentence}" for sentence in sentences])
    whole = plain.encode(sentences)
    model.prompts.update(query="the cat ", document="", other="the cat ")
    plain = FirstLastAverage(model)
    np.testing.assert_allclose(plain.encode_query(sentences), prefixed, atol=1e-5)
    np.testing.assert_allclose(plain.encode_document(sentences), whole, atol=1e-5)
    model.default_prompt_name = "other"
    plain = FirstLastAverage(model)
    np.testing.assert_allclose(plain.encode(sentences), prefixed, atol=1e-5)
    np.testing.assert_allclose(plain.encode_document(sentences), whole, atol=1e-5)  # its own prompt is empty
    model.default_prompt_name = None
    model.truncate_dim = 5
    np.testing.assert_allclose(FirstLastAverage(model).encode(sentences), whole[:, :5], atol=1e-5)
    assert not model[0].model.config.output_hidden_states  # as it was


def test_first_last_average_of_no_token_is_zeros():
    pooled = baselines._FirstLastPooling()(
        {"all_layer_embeddings": [torch.ones(1, 2, 3)] * 3, "attention_mask": torch.zeros(1, 2)}
    )["sentence_embedding"]
    assert torch.equal(pooled, torch.zeros(1, 3))  # as sentence-transformers' own pooling


def test_whitened_queries_are_encoded_as_queries(build, sentences):
    model = build("bert", "mean").eval()
    model.prompts.update(query="the cat ")
    whitened = Whitened(model, sentences)
    expected = whitened.encode([f"the cat {sentence}" for sentence in sentences])
    np.testing.assert_allclose(whitened.encode_query(sentences), expected, atol=1e-3)
    assert not np.allclose(whitened.encode_document(sentences), expected, atol=1e-2)


def test_first_last_average_needs_a_transformer():
    with pytest.raises(TypeError, match="must start with a Transformer"):
        FirstLastAverage([object()])


def texts(count=60):
    draw = np.random.default_rng(0)
    return ["".join(draw.choice(list("abc"), size=9, p=[0.6, 0.3, 0.1])) for _ in range(count)]


def test_whitened_vectors_have_no_mean_and_no_covariance():
    sentences = list(dict.fromkeys("".join(draw) for draw in texts()))
    model = Whitened(Letters(), sentences)
    found = model.encode(sentences)
    # Nine letters each: the counts lie in a plane, and the direction across it tells nothing.
    assert found.shape == (len(sentences), 2)
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(np.cov(found, rowvar=False), np.eye(2), atol=1e-6)
    one = Whitened(Letters(), sentences, dimensions=1).encode(sentences)
    np.testing.assert_allclose(one, found[:, :1])
    counts = np.array([[text.count(letter) for letter in "abc"] for text in sentences], dtype=float)
    values, vectors = np.linalg.eigh(np.cov(counts, rowvar=False))
    expected = (counts - counts.mean(axis=0)) @ vectors[:, -1] / np.sqrt(values[-1])
    np.testing.assert_allclose(np.abs(one[:, 0]), np.abs(expected), atol=1e-6)


def test_what_can_not_be_whitened():
    with pytest.raises(ValueError, match=r"1 different one\(s\)"):
        Whitened(Letters(), ["a", "a"])
    with pytest.raises(ValueError, match="dimensions must be from 1 to 3"):
        Whitened(Letters(), texts(), dimensions=4)
    with pytest.raises(ValueError, match=r"dimensions is 3, but the .* differ in 2 directions"):
        Whitened(Letters(), texts(), dimensions=3)


def test_first_last_average_has_the_models_similarity(build):
    model = build("bert", "mean").eval()
    model.similarity_fn_name = "dot"
    assert FirstLastAverage(model).similarity(torch.tensor([[2.0]]), torch.tensor([[3.0]])).item() == 6
