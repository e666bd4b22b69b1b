from __future__ import annotations

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from st_contrastive import FraternalEmbedding
from st_contrastive.components.shared_tokens import fit_affine, shared_tokens
from tests import foreign


@pytest.fixture(scope="session")
def german(tmp_path_factory):
    return foreign.checkpoint(tmp_path_factory.mktemp("german"))


def test_tokenizer_and_matrix_are_loaded_and_mapped(build, german):
    model = build()
    own = model.transformers_model.get_input_embeddings().weight
    fraternal = FraternalEmbedding.from_pretrained(str(german), model)
    matrix = load_file(german / "model.safetensors")["embeddings.word_embeddings.weight"]
    torch.testing.assert_close(fraternal.weight, matrix)
    assert fraternal.weight.shape[1] == 8
    assert fraternal.width == 32
    assert not list(fraternal.parameters())
    assert set(fraternal.state_dict()) == {"map", "shift"}  # the matrix is given to the constructor, not kept
    anchors = [t for t in fraternal.tokenizer.get_vocab() if t in model.tokenizer.get_vocab()]
    assert fraternal.alignment.anchors == len(anchors) >= foreign.SHARED - 1
    # The map is the least-squares solution: its errors are orthogonal to what it is made of.
    ids = torch.tensor([fraternal.tokenizer.get_vocab()[token] for token in anchors])
    errors = fraternal(ids) - own.detach()[[model.tokenizer.get_vocab()[token] for token in anchors]]
    design = torch.cat([matrix[ids], torch.ones(len(ids), 1)], dim=1)
    assert (design.T @ errors).abs().max() < 1e-4
    assert fraternal(ids[None]).shape == (1, len(ids), 32)
    assert not fraternal(ids).requires_grad


def test_an_exact_map_is_found(build):
    model = build()
    tokenizer = foreign.tokenizer()
    own = model.transformers_model.get_input_embeddings().weight.detach()
    theirs, ours = shared_tokens(tokenizer, model.tokenizer)
    # As wide as the rank of a map whose image holds the shared tokens' own vectors exactly.
    mean = own[ours].mean(dim=0)
    weight = torch.zeros(len(tokenizer), 32)
    weight[theirs] = (own[ours] - mean) @ torch.linalg.qr(torch.randn(32, 32))[0]
    fraternal = FraternalEmbedding(tokenizer, weight, model)
    torch.testing.assert_close(fraternal(theirs), own[ours], atol=1e-5, rtol=1e-4)
    assert fraternal.alignment.residual < 1e-8
    assert fraternal.alignment.cosine == pytest.approx(1)
    as_is = FraternalEmbedding(tokenizer, weight, model, align="none")
    torch.testing.assert_close(as_is(theirs), weight[theirs])
    assert as_is.alignment is None


def test_the_report_is_of_a_fit_without_a_tenth():
    source, target = torch.randn(40, 4).double(), torch.randn(40, 6).double()
    target[:, :4] += source
    left_out, rest = [0, 10, 20, 30], [row for row in range(40) if row % 10]
    design = torch.cat([source, torch.ones(40, 1)], dim=1)
    predicted = design[left_out] @ torch.linalg.lstsq(design[rest], target[rest]).solution
    weights, shift, report = fit_affine(source.float(), target.float())
    assert (weights.shape, shift.shape) == ((4, 6), (6,))
    error = (predicted - target[left_out]).square().sum() / (target[rest].mean(0) - target[left_out]).square().sum()
    assert report.residual == pytest.approx(error.item(), rel=1e-5)
    cosine = torch.nn.functional.cosine_similarity(predicted, target[left_out]).mean()
    assert report.cosine == pytest.approx(cosine.item(), rel=1e-5)
    assert "40 shared tokens" in str(report)


class Scaled(torch.nn.Embedding):
    """As Gemma has it: what the layer gives is not its matrix."""

    def forward(self, ids):
        return 5 * super().forward(ids)


def test_a_scaled_embedding_layer_is_mapped_onto_what_it_gives(build):
    model = build()
    scaled = Scaled(len(model.tokenizer), 32)
    model.transformers_model.set_input_embeddings(scaled)
    weight = scaled.weight.detach() @ torch.linalg.qr(torch.randn(32, 32))[0]
    fraternal = FraternalEmbedding(model.tokenizer, weight, model)
    ids = torch.arange(40)
    torch.testing.assert_close(fraternal(ids), scaled(ids).detach(), atol=1e-4, rtol=1e-3)
    refused(ValueError, "scales its vectors", FraternalEmbedding, model.tokenizer, weight, model, align="none")


def test_words_that_end_with_a_mark_are_matched_whole(build):
    pieces = ["<unk>", "<s>", "</s>", "<pad>", "the</w>", "river</w>", "in", "s", ".</w>"]
    own = build().tokenizer
    theirs, ours = shared_tokens(sentencepiece(pieces), own)
    tokens = dict(zip(theirs.tolist()[4:], own.convert_ids_to_tokens(ours.tolist()[4:]), strict=True))
    assert tokens == {4: "the", 5: "river"}


def sentencepiece(tokens):
    model = Tokenizer(models.Unigram([(token, -1.0) for token in tokens], unk_id=0))
    model.pre_tokenizer = pre_tokenizers.Metaspace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def test_tokens_are_matched_across_ways_to_write_them(build):
    own = build().tokenizer  # WordPiece, lower case: "the", "##s", "##ing"
    vocabulary = own.get_vocab()
    pieces = ["<unk>", "<s>", "</s>", "<pad>", "▁the", "the", "▁The", "s", "▁s", "ing", "▁ing", "▁river", "▁fluss"]
    theirs, ours = shared_tokens(sentencepiece(pieces), own)
    found = {pieces[a]: b for a, b in zip(theirs.tolist(), ours.tolist(), strict=True)}
    assert found == {
        "<unk>": vocabulary["[UNK]"],
        "<s>": vocabulary["[CLS]"],
        "</s>": vocabulary["[SEP]"],
        "<pad>": vocabulary["[PAD]"],
        "▁the": vocabulary["the"],
        "▁The": vocabulary["the"],  # the encoder's tokenizer lowers the case
        "s": vocabulary["##s"],
        "▁s": vocabulary["s"],
        "ing": vocabulary["##ing"],
        "▁river": vocabulary["river"],
    }  # not "the" inside a word, nor "▁ing"
    byte_level = build("roberta").tokenizer
    theirs, ours = shared_tokens(sentencepiece(["<unk>", "<s>", "</s>", "<pad>", "▁the", "é", "▁The", "a"]), byte_level)
    tokens = dict(zip(theirs.tolist(), byte_level.convert_ids_to_tokens(ours.tolist()), strict=True))
    assert tokens == {0: "<unk>", 1: "<s>", 2: "</s>", 3: "<pad>", 4: "Ġthe", 7: "a"}


def test_ideographs_and_punctuation_match_in_any_place(build):
    tokenizer = foreign.tokenizer()
    chinese = transformers.BertTokenizer(
        vocab={
            t: i for i, t in enumerate(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "猫", "##猫", "。", "##a", "a"])
        }
    )
    theirs, ours = shared_tokens(sentencepiece(["<unk>", "<s>", "</s>", "<pad>", "猫", "▁。", "a"]), chinese)
    assert dict(zip(theirs.tolist(), ours.tolist(), strict=True))[4] == 5
    assert dict(zip(theirs.tolist(), ours.tolist(), strict=True))[5] == 7
    assert dict(zip(theirs.tolist(), ours.tolist(), strict=True))[6] == 8
    assert len(shared_tokens(tokenizer, chinese)[0]) == 5 + 2  # special tokens, "a" and "##a"


def test_labels_carry_the_tokens_and_are_read_back(build, german):
    fraternal = FraternalEmbedding.from_pretrained(str(german), build(), max_length=6)
    texts = ["regen fällt", "", "sie kauft brot und milch und brot"]
    labels = fraternal.labels(texts)
    expected = [fraternal.tokenizer(text, truncation=True, max_length=6)["input_ids"] for text in texts]
    assert [len(row) for row in expected] == [4, 2, 6]
    assert labels[:, 1:].tolist() == [row + [-1] * (6 - len(row)) for row in expected]
    assert set(labels[:, 0]) == {fraternal.fingerprint}
    labels = torch.from_numpy(labels)
    ids, mask = fraternal.read(labels)
    assert mask.tolist() == [[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0], [1] * 6]
    assert [row[: len(e)].tolist() for row, e in zip(ids, expected, strict=True)] == expected
    ids, mask = fraternal.read(labels, limit=3)
    sep = fraternal.tokenizer.sep_token_id
    assert ids[0].tolist() == [*expected[0][:2], sep]  # what is cut is the end of the sentence
    assert ids[2].tolist() == [*expected[2][:2], sep]
    assert mask.tolist() == [[1, 1, 1], [1, 1, 0], [1, 1, 1]]


def test_labels_of_something_else_are_refused(build, german, tmp_path):
    fraternal = FraternalEmbedding.from_pretrained(str(german), build())
    for labels in (torch.zeros(3), torch.zeros(3, dtype=torch.long), torch.zeros(3, 4)):
        with pytest.raises(ValueError, match="The labels are not translations"):
            fraternal.read(labels)
    with pytest.raises(ValueError, match="a different tokenizer from fraternal's"):
        fraternal.read(torch.ones(3, 4, dtype=torch.long))


def refused(error, message, call, *args, **options):
    with pytest.raises(error, match=message) as info:
        call(*args, **options)
    assert "\n" not in str(info.value).strip()


def test_bad_checkpoints_and_arguments_are_named(build, german, tmp_path, checkpoint):
    import shutil

    model = build()
    load = FraternalEmbedding.from_pretrained
    refused(OSError, "missing is not a folder", load, str(tmp_path / "missing"), model)
    broken = tmp_path / "broken"
    shutil.copytree(german, broken)
    (broken / "model.safetensors").unlink()
    refused(OSError, "broken can't be loaded", load, str(broken), model)
    save_file({"classifier.weight": torch.zeros(2, 2)}, broken / "model.safetensors", {"format": "pt"})
    refused(OSError, "holds no input embeddings", load, str(broken), model)
    config = json.loads((broken / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "code.Config", "AutoModel": "code.Model"}
    config["model_type"] = "stranger"
    (broken / "config.json").write_text(json.dumps(config))
    (broken / "code.py").write_text("raise SystemExit('code was run')")
    refused((ValueError, OSError), "broken can't be loaded", load, str(broken), model)

    tokenizer = foreign.tokenizer()
    rows = len(tokenizer)
    refused(ValueError, r"share \d+ tokens, too few", FraternalEmbedding, tokenizer, torch.randn(rows, 64), model)
    refused(
        ValueError,
        "encoder's width 32, got 8",
        FraternalEmbedding,
        tokenizer,
        torch.randn(rows, 8),
        model,
        align="none",
    )
    refused(ValueError, "take both from one checkpoint", FraternalEmbedding, tokenizer, torch.randn(5, 8), model)
    refused(ValueError, "align must be", FraternalEmbedding, tokenizer, torch.randn(rows, 8), model, align="linear")
    refused(ValueError, "max_length", FraternalEmbedding, tokenizer, torch.randn(rows, 8), model, max_length=1)
