"""The promises that every public loss keeps."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
import warnings

import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, StaticEmbedding

import st_contrastive
from st_contrastive import (
    AuxiliaryMLMPretrainingLoss,
    CombinedLoss,
    ConIsILoss,
    DiffCSELoss,
    InfoCSEAblation,
    InfoCSELoss,
    SimCSELoss,
    TwinsAblation,
    TwinsLoss,
)
from st_contrastive.encoder import is_causal, require_trainable
from st_contrastive.losses.base import TextLoss
from st_contrastive.methods import argument_defaults, build_loss
from tests.methods import method_of
from tests.selection import crossed

#: Options of the loss whose name the case begins with, how many text columns it is given, and its terms.
OPTIONS = {
    "simcse": ({}, 1, ["contrastive"]),
    "simcse-pairs": ({}, 2, ["contrastive"]),
    "simcse-no-head": ({"head": False}, 1, ["contrastive"]),
    "simcse-mlm": ({"mlm_weight": 0.1, "mask_rate": 0.4}, 1, ["contrastive", "mlm"]),
    "simcse-mlm-pairs": ({"mlm_weight": 0.1}, 2, ["contrastive", "mlm"]),
    "conisi-other": ({}, 1, ["contrastive", "interactive"]),
    "conisi-subword": ({"strategy": "subword"}, 1, ["contrastive", "interactive"]),
    "conisi-given": ({"strategy": "given", "interaction_dim": 1}, 2, ["contrastive", "interactive"]),
    "twins": ({}, 2, ["identical", "fraternal", "twins"]),
    "twins-one-column": ({"train_pooling": "cls"}, 1, ["identical"]),
    "twins-mean": ({"train_pooling": "mean"}, 2, ["identical", "fraternal", "twins"]),
    "twins-own": ({"queue_batches": 1, "forgetting_rate": 0.0}, 2, ["identical", "fraternal", "twins"]),
    "twins-embeddings": ({"train_pooling": "cls", "ablation": TwinsAblation(
                             margin_from="embeddings", freeze_embeddings=False, unpaired_tokens="weighted")}, 2,
                         ["identical", "fraternal", "twins"]),
    "twins-no-margin": ({"twins_weight": 0.0}, 2, ["identical", "fraternal"]),
    "twins-momentum": ({"ablation": TwinsAblation(key_momentum=0.9)}, 1, ["identical"]),
    "momentum": ({"queue_size": 7}, 1, ["contrastive"]),
    "momentum-moco": ({"positives": "momentum", "head": False}, 2, ["contrastive"]),
    "infocse": ({"mlm_weight": 0.1, "head": "projector"}, 1, ["contrastive", "mlm"]),
    "infocse-first": ({"mlm_weight": 0.1, "head": "tanh", "ablation": InfoCSEAblation(masked_views="first")}, 1,
                      ["contrastive", "mlm"]),
    "infocse-literal": ({"mlm_weight": 0.1, "weighting": "loss",
                         "ablation": InfoCSEAblation(tied_head=True, lower_dropout=True)}, 1, ["contrastive", "mlm"]),
    "infocse-no-detach": ({"mlm_weight": 0.1, "ablation": InfoCSEAblation(detach=False, contrastive_weight=0.5)}, 1,
                          ["contrastive", "mlm"]),
    "infocse-rtd": ({"mlm_weight": 0.1, "ablation": InfoCSEAblation(rtd_weight=0.1)}, 1,
                    ["contrastive", "mlm", "rtd"]),
    "diffcse": ({"rtd_weight": 0.1}, 1, ["contrastive", "rtd"]),
    "diffcse-gradient": ({"rtd_weight": 0.1, "weighting": "gradient", "sampling": True,
                          "vector": "encoder"}, 1, ["contrastive", "rtd"]),
    "combined": ({"mlm_weight": 0.1, "interaction_weight": 0.3}, 1,
                 ["contrastive", "interactive", "mlm"]),
    "combined-dropout": ({"positives": "dropout", "interaction_weight": 0.0, "mlm_weight": 0.0}, 1,
                         ["contrastive"]),
    "pretraining": ({}, 1, ["mlm", "auxiliary_mlm"]),
    "pretraining-words": ({"mask_rate": 0.4, "whole_words": True, "auxiliary_weight": 0.5, "tied_head": False}, 1,
                          ["mlm", "auxiliary_mlm"]),
}  # fmt: skip
#: The first case of each loss; of InfoCSE, the one with all of its terms.
ONE_OF_EACH = tuple({**{method_of(name).name: name for name in reversed(OPTIONS)}, "infocse": "infocse-rtd"}.values())
CASES = {name: (method_of(name).loss_class, *case) for name, case in OPTIONS.items()}
#: Cases whose masked-LM cross-entropy is computed in chunks, as over a large vocabulary.
IN_CHUNKS = ("infocse-literal", "pretraining-words")

pytestmark = [
    pytest.mark.filterwarnings("ignore:TwinsLoss was given one column"),
    pytest.mark.filterwarnings("ignore:.*takes the encoder's dropout as its only"),
    pytest.mark.filterwarnings("ignore:The encoder's checkpoint has no masked-LM head"),
]


#: The other cases run with ``make test-long``.
a_case_of_each_loss = pytest.mark.parametrize("name", crossed(CASES, quick=ONE_OF_EACH.__contains__))


@pytest.fixture
def case(name, limit_logits):
    if name in IN_CHUNKS:
        limit_logits(200)
    return CASES[name]


def columns(model, sentences, count):
    return [model.preprocess(list(part)) for part in (sentences, sentences[::-1])[:count]]


def test_every_public_loss_is_held_to_the_contract():
    public = {getattr(st_contrastive, name) for name in st_contrastive.__all__ if name.endswith("Loss")}
    assert public == {case[0] for case in CASES.values()}


LOSSES = pytest.mark.parametrize(
    "loss_class", dict.fromkeys(case[0] for case in CASES.values()), ids=lambda loss_class: loss_class.__name__
)


@LOSSES
def test_constructs_with_the_model_alone_and_says_what_it_cites(build, loss_class):
    loss = loss_class(build())
    assert isinstance(loss, TextLoss)
    assert loss.citation.strip().startswith("@")
    assert loss.citation.count("{") == loss.citation.count("}")


#: The order of a loss's arguments after the model. What is not named here is the method's own, after the temperature.
NETWORKS = ("auxiliary", "fraternal", "generator")
HEADS = ("train_pooling", "head", "interaction_dim", "vector", "tied_head")
LAST = ("ablation", "gather_across_devices", "mini_batch_size", "log_terms")


def place(name):
    if name in NETWORKS:
        return 0
    if name in LAST:
        return 4 + LAST.index(name)
    return 1 if name == "temperature" else 3 if name in HEADS else 2


@pytest.mark.filterwarnings("default")
@LOSSES
def test_a_warning_of_the_constructor_points_at_the_callers_line(build, loss_class):
    model = build()
    model.bfloat16()
    with pytest.warns(UserWarning, match="bfloat16 weights") as caught:
        loss_class(model)
    assert {warning.filename for warning in caught if "bfloat16 weights" in str(warning.message)} == {__file__}


@LOSSES
def test_arguments_are_few_keyword_only_and_in_one_order(loss_class):
    model, *arguments = inspect.signature(loss_class).parameters.values()
    assert model.name == "model"
    assert all(argument.kind is inspect.Parameter.KEYWORD_ONLY for argument in arguments)
    assert all(argument.default is not inspect.Parameter.empty for argument in arguments)
    assert 1 <= len(arguments) <= 12
    places = [place(argument.name) for argument in arguments]
    assert places == sorted(places), [argument.name for argument in arguments]
    assert arguments[-1].name == "log_terms"
    assert ("ablation" in inspect.signature(loss_class).parameters) == (loss_class.ablation_class is not None)
    if loss_class is not AuxiliaryMLMPretrainingLoss:  # which contrasts nothing
        assert [argument.name for argument in arguments[-3:]] == list(LAST[1:])


@LOSSES
def test_the_options_of_ablations_are_frozen_and_public(loss_class):
    kind = loss_class.ablation_class
    if kind is None:
        return
    assert getattr(st_contrastive, kind.__name__) is kind
    options, names = kind(), [field.name for field in dataclasses.fields(kind)]
    assert not set(names) & set(inspect.signature(loss_class).parameters)
    assert options == kind()
    for name in names:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(options, name, None)
        assert re.search(rf"^ +{name}: ", kind.__doc__, re.MULTILINE), f"{name} is not described"
        assert not re.search(rf"^        {name}: ", loss_class.__doc__, re.MULTILINE), f"{name} is described twice"


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_evaluates_under_data_parallel(build, sentences, name):
    """The Trainer leaves its wrapper in the loss, and DataParallel passes no attributes on."""
    loss_class, options, count, _ = CASES[name]
    model = build().eval()
    loss = loss_class(model, **options)
    batch = columns(model, sentences, count)
    with torch.no_grad():
        expected = loss(batch)
        loss.model = torch.nn.DataParallel(model)
        if name == "pretraining":
            with pytest.raises(ValueError, match="reads the states of single layers"):
                loss(batch)
            return
        found = loss(batch)
    assert found.keys() == expected.keys()
    for term, value in expected.items():
        torch.testing.assert_close(found[term], value, rtol=1e-4, atol=1e-6)


@LOSSES
def test_arguments_of_a_compiled_model_are_those_of_the_plain_one(build, loss_class):
    model = build()
    plain, compiled = loss_class(model), loss_class(torch.compile(model, backend="eager"))
    assert compiled.get_config_dict() == plain.get_config_dict()
    assert getattr(compiled, "vector", None) == getattr(plain, "vector", None)


@a_case_of_each_loss
def test_config_round_trips(build, case):
    loss_class, options, _, _ = case
    model = build()
    config = loss_class(model, **options).get_config_dict()
    assert json.loads(json.dumps(config)) == config
    ablation = options.get("ablation")
    given = {**options, **({} if ablation is None else vars(ablation))}
    given.pop("ablation", None)
    assert config == {**argument_defaults(loss_class), **given}
    assert build_loss(loss_class, model, **config).get_config_dict() == config


@pytest.mark.parametrize("name", CASES)
def test_terms_are_finite_scalars_and_their_sum_is_the_loss(build, no_dropout, sentences, case):
    loss_class, options, count, names = case
    model = build(dropout=False)
    values = []
    for log_terms in (True, False):
        torch.manual_seed(5)
        loss = loss_class(model, **options, log_terms=log_terms)
        no_dropout(loss)
        values.append(loss(columns(model, sentences, count), torch.zeros(len(sentences))))
    terms, total = values
    assert list(terms) == names
    assert all(term.ndim == 0 and math.isfinite(term.item()) for term in terms.values())
    assert isinstance(total, torch.Tensor)
    assert total.item() == pytest.approx(sum(term.item() for term in terms.values()))
    assert terms.total.item() == pytest.approx(total.item())


@a_case_of_each_loss
def test_everything_that_is_trained_gets_a_gradient(build, sentences, case):
    loss_class, options, count, _ = case
    model = build()
    loss = loss_class(model, **options)
    loss(columns(model, sentences, count)).backward()
    # The model's own pooler; positions behind the longest row; a bias that cancels in the difference of eq. 8.
    unused = ("pooler", "position_embeddings", "classifier.bias")
    for name, parameter in loss.named_parameters():
        if parameter.requires_grad and not any(part in name for part in unused):
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


@a_case_of_each_loss
def test_evaluation_changes_nothing(build, sentences, case):
    loss_class, options, count, _ = case
    model = build()
    loss = loss_class(model, **options).train()
    loss(columns(model, sentences, count))
    before = {key: value.clone() for key, value in loss.state_dict().items()}
    # The trainer's evaluation: the encoder alone is switched, the loss stays in training mode.
    model.eval()
    drawn = torch.get_rng_state()
    with torch.no_grad():
        values = [float(loss(columns(model, sentences[:4], count)).total) for _ in range(2)]
    assert values[0] == values[1]
    assert torch.equal(torch.get_rng_state(), drawn)
    with pytest.warns(UserWarning, match="evaluation mode"):
        loss(columns(model, sentences[:4], count))  # with gradients, but not training
    model.train()
    with torch.no_grad():
        loss(columns(model, sentences[:4], count))  # training, but without gradients
    after = loss.state_dict()
    assert len(before) > 10
    assert set(after) == set(before)
    assert all(torch.equal(after[key], value) for key, value in before.items())


def test_training_changes_what_it_should(build, sentences):
    model = build()
    batch = model.preprocess(sentences)
    for loss, key in (
        (TwinsLoss(model), "queue.keys"),
        (ConIsILoss(model), "head.norm.running_mean"),
        (InfoCSELoss(model, head="projector"), "head.outer_norm.running_mean"),
    ):
        before = loss.state_dict()[key].clone()
        loss([batch])
        assert not torch.equal(loss.state_dict()[key], before)


ODD = {
    "one": ["rain falls"],
    "identical": ["rain falls"] * 4,
    "empty": ["", "", ""],
    "one-empty": [""],
    "one-token": ["a", "b", "c"],
    "long": ["rain " * 600, "cat", ""],
}


@pytest.mark.parametrize(
    ("name", "odd"),
    crossed(
        CASES,
        ODD,
        quick=lambda name, odd: name == "infocse-rtd" or (odd in ("one", "empty", "long") and name in ONE_OF_EACH),
    ),
)
def test_odd_batches_are_finite(build, case, odd):
    loss_class, options, count, names = case
    texts = ODD[odd]
    model = build()
    loss = loss_class(model, **options)
    for _ in range(2):  # the second meets what the first left behind
        terms = loss(columns(model, texts, count))
        assert list(terms) == names
        terms.backward()
    assert all(math.isfinite(term.item()) for term in terms.values())
    if len(texts) == 1 and "contrastive" in terms and getattr(loss, "queue", None) is None:
        assert terms["contrastive"].item() == 0
    for parameter in loss.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()
    assert all(value.isfinite().all() for value in loss.state_dict().values() if value.is_floating_point())


def test_one_row_leaves_batch_norm_as_it_is(build):
    model = build()
    for loss in (ConIsILoss(model), InfoCSELoss(model, head="projector")):
        before = {k: v.clone() for k, v in loss.state_dict().items() if "running" in k or "tracked" in k}
        loss([model.preprocess(["rain falls"])])
        assert before
        assert all(torch.equal(loss.state_dict()[key], value) for key, value in before.items())


@pytest.mark.parametrize(
    ("name", "pooling"),
    crossed(
        CASES,
        ["cls", "mean", "max"],
        quick=lambda name, pooling: name == "simcse" or (pooling == "mean" and name in ONE_OF_EACH),
    ),
)
def test_poolings_dense_and_normalize(checkpoint, sentences, case, pooling):
    from sentence_transformers.base.modules import Dense

    loss_class, options, count, _ = case
    transformer = Transformer(str(checkpoint("bert")))
    modules = [transformer, Pooling(32, pooling), Dense(32, 24), Normalize()]
    model = SentenceTransformer(modules=modules, device="cpu").train()
    loss_class(model, **options)(columns(model, sentences, count)).backward()
    assert transformer.model.encoder.layer[0].attention.self.query.weight.grad.abs().sum() > 0


@a_case_of_each_loss
def test_left_padding_gives_what_right_padding_gives(build, no_dropout, sentences, case):
    loss_class, options, count, _ = case
    model = build(dropout=False)
    loss = loss_class(model, **options)
    no_dropout(loss)
    loss(columns(model, sentences, count))  # something in the queue, the same for both
    state = {key: value.clone() for key, value in loss.state_dict().items()}
    values = []
    for side in ("right", "left"):
        loss.load_state_dict(state)
        model.tokenizer.padding_side = side
        batch = columns(model, sentences, count)
        assert (batch[0]["attention_mask"][:, 0] == 0).any() == (side == "left")
        torch.manual_seed(2)
        values.append({name: term.item() for name, term in loss(batch).items()})
    assert values[0] == pytest.approx(values[1], rel=1e-5)


@a_case_of_each_loss
@pytest.mark.filterwarnings("ignore:model has bfloat16 weights")
def test_half_precision_trains(build, no_dropout, sentences, case):
    loss_class, options, count, _ = case
    model = build(dropout=False)
    loss = loss_class(model, **options)
    no_dropout(loss)
    state = {key: value.clone() for key, value in loss.state_dict().items()}
    values = []
    for enabled in (False, True):
        loss.load_state_dict(state)
        torch.manual_seed(3)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            terms = loss(columns(model, sentences, count))
        assert all(term.dtype == torch.float32 for term in terms.values())
        values.append({name: term.item() for name, term in terms.items()})
        terms.backward()
    assert values[1] == pytest.approx(values[0], rel=0.1, abs=0.02)
    model = build().bfloat16()
    terms = loss_class(model, **options)(columns(model, sentences, count))
    terms.backward()
    assert all(term.isfinite() for term in terms.values())


@a_case_of_each_loss
def test_float16_weights_are_refused(build, case):
    with pytest.raises(ValueError, match=r"model has float16 weights: .* model\.float\(\)"):
        case[0](build().half(), **case[1])


def test_frozen_float16_weights_are_taken(build):
    require_trainable(build().half().requires_grad_(False))


def test_weights_and_readings_that_learn_little_are_warned_of(build):
    with pytest.warns(UserWarning, match="model has bfloat16 weights, in which most small updates round away"):
        SimCSELoss(build().bfloat16())
    with pytest.warns(UserWarning, match="model is a decoder that is read at its first token"):
        SimCSELoss(build("qwen"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_trainable(build())
        require_trainable(build("qwen", "lasttoken"))


@pytest.mark.parametrize("family", ["qwen", "bert", "roberta", "deberta", "modernbert", "xlnet", "funnel"])
def test_a_decoder_is_known_by_what_its_first_token_sees(build, family):
    assert is_causal(build(family)) == (family == "qwen")


@pytest.mark.parametrize(
    ("decoder", "config"),
    [
        (transformers.BloomModel, transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=4)),
        (transformers.GPT2Model, transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4)),
        (transformers.MambaModel, transformers.MambaConfig(hidden_size=32, num_hidden_layers=2)),
    ],
)
def test_decoders_that_do_not_say_so_in_their_configuration(build, decoder, config):
    model = build()
    config.vocab_size = len(model.tokenizer)
    model[0].model = decoder(config)
    assert is_causal(model)


@a_case_of_each_loss
@pytest.mark.parametrize("count", [0, 3])
def test_wrong_number_of_columns(build, sentences, case, count):
    loss_class, options, _, _ = case
    model = build()
    with pytest.raises(ValueError, match=f"{loss_class.__name__} takes .* got {count}"):
        loss_class(model, **options)([model.preprocess(sentences)] * count)


def test_features_that_are_not_padded_text(build, sentences):
    model = build()
    with pytest.raises(ValueError, match="input_ids"):
        SimCSELoss(model)([{"sentence_embedding": torch.ones(2, 32)}])


def test_models_that_can_not_work(build, checkpoint):
    static = SentenceTransformer(modules=[StaticEmbedding(build().tokenizer, embedding_dim=8)], device="cpu")
    no_mask = build()
    no_mask.tokenizer.mask_token = None
    for case in CASES.values():
        with pytest.raises(TypeError, match="token-level Transformer"):
            case[0](static)
        with pytest.raises(TypeError, match="SentenceTransformer"):
            case[0](torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="no mask token"):
        InfoCSELoss(no_mask)
    with pytest.raises(ValueError, match="no mask token"):
        SimCSELoss(no_mask, mlm_weight=0.1)
    SimCSELoss(no_mask)
    with pytest.raises(ValueError, match="ALBERT"):
        InfoCSELoss(build("albert"))


@pytest.mark.parametrize(
    ("loss_class", "options", "message"),
    [
        (SimCSELoss, {"temperature": 0}, "temperature"),
        (SimCSELoss, {"temperature": "warm"}, "temperature"),
        (SimCSELoss, {"temperature": float("inf")}, "temperature"),
        (SimCSELoss, {"head": "false"}, "head must be True or False"),
        (SimCSELoss, {"mlm_weight": "a little"}, "mlm_weight must be a number at least 0"),
        (SimCSELoss, {"mask_rate": 15}, "mask_rate must be a number above 0 and up to 1"),
        (SimCSELoss, {"gather_across_devices": 1}, "gather_across_devices must be True or False"),
        (InfoCSELoss, {"head": True}, "head must be one of 'projector', 'tanh', None; got True"),
        (ConIsILoss, {"strategy": "both"}, "strategy"),
        (ConIsILoss, {"interaction_weight": 1.2}, "interaction_weight"),
        (ConIsILoss, {"replacement_rate": -1}, "rate"),
        (ConIsILoss, {"interaction_dim": 0}, "interaction_dim"),
        (TwinsLoss, {"fusion_rate": 2}, "fusion_rate"),
        (TwinsLoss, {"queue_batches": -1}, "queue_batches"),
        (TwinsLoss, {"queue_batches": 4, "forgetting_rate": 0.25}, "forgetting_rate"),
        (TwinsLoss, {"train_pooling": "middle"}, "train_pooling"),
        (TwinsLoss, {"fraternal": "german"}, "fraternal"),
        (TwinsLoss, {"identical_weight": -1}, "identical_weight"),
        (TwinsLoss, {"fraternal_weight": "1"}, "fraternal_weight"),
        (TwinsLoss, {"twins_weight": math.nan}, "twins_weight"),
        (TwinsLoss, {"margin_from": "words"}, "margin_from"),
        (TwinsLoss, {"freeze_embeddings": "no"}, "freeze_embeddings"),
        (TwinsLoss, {"unpaired_tokens": "half"}, "unpaired_tokens"),
        (TwinsLoss, {"key_momentum": 1}, "key_momentum must be a number of at least 0 and below 1, got 1"),
        (TwinsLoss, {"key_momentum": "slow"}, "key_momentum"),
        (
            TwinsLoss,
            {"temparature": 0.1},
            "TwinsLoss has no argument temparature, only fraternal, temperature, .*margin",
        ),
        (InfoCSELoss, {"mlm_weight": -1e-5}, "mlm_weight"),
        (InfoCSELoss, {"mask_rate": 1.5}, "rate"),
        (InfoCSELoss, {"split_layer": 9}, "split_layer"),
        (InfoCSELoss, {"masked_views": "all"}, "masked_views"),
        (InfoCSELoss, {"auxiliary": "model.pt"}, "auxiliary"),
        (InfoCSELoss, {"auxiliary": 3}, "auxiliary"),
        (InfoCSELoss, {"rtd_weight": float("nan")}, "rtd_weight"),
        (InfoCSELoss, {"contrastive_weight": "all"}, "contrastive_weight"),
        (InfoCSELoss, {"weighting": "both"}, "weighting must be one of 'loss', 'gradient'"),
        (InfoCSELoss, {"vector": "pooler"}, "vector must be one of 'encoder', 'head'"),
        (InfoCSELoss, {"vector": "head", "head": None}, "vector='head' .* needs head='projector'"),
        (InfoCSELoss, {"detach": 0}, "detach must be True or False"),
        (InfoCSELoss, {"tied_head": "own"}, "tied_head must be True or False"),
        (InfoCSELoss, {"lower_dropout": None}, "lower_dropout must be True or False"),
        (InfoCSELoss, {"detector": "distilbert"}, "detector must be of type ReplacedTokenDetector"),
        (DiffCSELoss, {"rtd_weight": -1}, "rtd_weight"),
        (DiffCSELoss, {"mask_rate": 2}, "rate"),
        (DiffCSELoss, {"vector": "pooler"}, "vector must be one of 'encoder', 'head', None"),
        (DiffCSELoss, {"sampling": "yes"}, "sampling must be True or False"),
        (DiffCSELoss, {"generator": 3}, "generator"),
        (AuxiliaryMLMPretrainingLoss, {"mask_rate": 2}, "rate"),
        (AuxiliaryMLMPretrainingLoss, {"split_layer": 9}, "split_layer"),
        (AuxiliaryMLMPretrainingLoss, {"auxiliary_weight": 0}, "auxiliary_weight must be above 0"),
        (AuxiliaryMLMPretrainingLoss, {"auxiliary_weight": -1}, "auxiliary_weight must be a number at least 0"),
        (AuxiliaryMLMPretrainingLoss, {"whole_words": 1}, "whole_words must be True or False"),
        (AuxiliaryMLMPretrainingLoss, {"log_terms": "no"}, "log_terms must be True or False"),
    ],
)
def test_bad_arguments_are_named_before_training(build, loss_class, options, message):
    with pytest.raises((ValueError, TypeError, OSError), match=message):
        build_loss(loss_class, build(), **options)


def test_parts_of_the_model_and_strangers_are_refused(build, checkpoint):
    from transformers import AutoModel

    from st_contrastive.components import AuxiliaryMLM

    model = build()
    with pytest.raises(TypeError, match="fraternal must be a FraternalEmbedding"):
        TwinsLoss(model, fraternal=model[0].model.get_input_embeddings())
    with pytest.raises(TypeError, match="ablation must be of type TwinsAblation, or None; got InfoCSEAblation"):
        TwinsLoss(model, ablation=InfoCSEAblation())
    with pytest.raises(TypeError, match="ablation must be of type InfoCSEAblation, or None; got dict"):
        InfoCSELoss(model, ablation={"detach": False})
    stranger = AuxiliaryMLM.from_encoder(AutoModel.from_pretrained(checkpoint("roberta")))
    with pytest.raises(ValueError, match="auxiliary was made from"):
        InfoCSELoss(model, auxiliary=stranger)
    own = AuxiliaryMLM.from_encoder(model[0].model, split_layer=1)
    loss = InfoCSELoss(model, auxiliary=own)
    assert loss.auxiliary is own is loss.get_config_dict()["auxiliary"]
    assert not any(name.startswith("_") for name in loss.state_dict())


def test_a_model_without_dropout_is_warned_of(build):
    for loss_class in (SimCSELoss, TwinsLoss, InfoCSELoss):
        with pytest.warns(UserWarning, match=f"{loss_class.__name__} takes the encoder's dropout"):
            loss_class(build(dropout=False))


def test_a_model_without_a_tokenizer_is_refused(checkpoint, tmp_path):
    import shutil

    folder = tmp_path / "no-tokenizer"
    shutil.copytree(checkpoint("bert"), folder)
    for file in folder.glob("*token*"):
        file.unlink()
    model = SentenceTransformer(modules=[Transformer(str(folder)), Pooling(32, "cls")], device="cpu")
    for case in CASES.values():
        with pytest.raises(ValueError, match="no tokenizer files"):
            case[0](model)


@a_case_of_each_loss
def test_truncated_dimensions_and_prompts(build, sentences, case):
    loss_class, options, count, names = case
    model = build(pooling="mean")
    model.truncate_dim = 16
    model[1].include_prompt = False
    loss = loss_class(model, **options)
    terms = loss([model.preprocess(list(part), prompt="the red ") for part in (sentences, sentences[::-1])[:count]])
    assert list(terms) == names
    assert all(term.isfinite() for term in terms.values())


def test_the_vector_that_is_asked_leaves_the_prompt_out_as_the_model_does(build, no_dropout, sentences):
    from st_contrastive.encoder import Rows, encode, pool, pool_as_model

    model = build(pooling="mean", dropout=False)
    model[1].include_prompt = False
    encoded = encode(model, [Rows.of(model.preprocess(sentences, prompt="the red "), model)] * 2)
    for view in encoded:
        torch.testing.assert_close(pool_as_model(model, view), view.sentences)
        torch.testing.assert_close(pool(model, view, "mean"), view.sentences)
    model[1].include_prompt = True
    assert not torch.allclose(pool(model, encoded[0], "mean"), encoded[0].sentences)


@a_case_of_each_loss
def test_gradient_checkpointing_and_the_users_hooks(build, no_dropout, sentences, case):
    loss_class, options, count, _ = case
    values = []
    for checkpointing in (False, True):
        model = build(dropout=False)
        if checkpointing:
            encoder = model[0].model  # transformers is renaming it
            getattr(encoder, "activation_checkpointing_enable", encoder.gradient_checkpointing_enable)()
            assert any(getattr(module, "gradient_checkpointing", False) for module in encoder.modules())
        calls = []
        model[0].model.encoder.layer[0].output.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        torch.manual_seed(1)
        loss = loss_class(model, **options)
        no_dropout(loss)
        loss.saves_padding = False
        calls.clear()  # each encoder is tried once when a loss is built
        torch.manual_seed(2)
        total = loss(columns(model, sentences, count)).total
        in_pairs = loss_class is ConIsILoss or (loss_class is CombinedLoss and loss.positives == "pair")
        masks = loss_class is SimCSELoss and loss.mlm_weight > 0
        assert len(calls) == (2 if in_pairs or masks else 1)  # the encoder's passes, and no copy's
        total.backward()
        values.append((total.item(), model[0].model.encoder.layer[0].attention.self.query.weight.grad))
    assert values[0][0] == pytest.approx(values[1][0], rel=1e-5)
    assert values[0][1].abs().sum() > 0
    torch.testing.assert_close(values[0][1], values[1][1], rtol=1e-4, atol=1e-6)


def test_matryoshka_around_simcse_without_a_head(build, sentences):
    from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss

    model = build()
    inner = SimCSELoss(model, head=False, log_terms=False)
    MatryoshkaLoss(model, inner, matryoshka_dims=[32, 16])([model.preprocess(sentences)], None).backward()
    assert model[0].model.encoder.layer[0].attention.self.query.weight.grad.abs().sum() > 0
    masking = SimCSELoss(model, head=False, log_terms=False, mlm_weight=0.1)
    with pytest.raises(ValueError, match=r"mlm_weight=0\.1 can't be used inside a loss such as MatryoshkaLoss"):
        MatryoshkaLoss(model, masking, matryoshka_dims=[32, 16])([model.preprocess(sentences)], None)


def test_one_column_is_said_once(build, sentences):
    model = build()
    loss = TwinsLoss(model)
    with pytest.warns(UserWarning, match="identical twins and the queue only"):
        loss(columns(model, sentences, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(columns(model, sentences, 1))


def test_views_of_like_length_share_a_pass(build, sentences):
    model = build()
    passes = []
    for loss_class, options, count, expected in (
        (SimCSELoss, {}, 1, 1),
        (ConIsILoss, {}, 1, 2),
        (TwinsLoss, {}, 2, 1),
        (InfoCSELoss, {}, 1, 1),
        (DiffCSELoss, {}, 1, 1),
        (AuxiliaryMLMPretrainingLoss, {}, 1, 1),
    ):
        loss = loss_class(model, **options)
        loss.saves_padding = False
        passes.clear()
        # sentence-transformers calls the model's `forward` itself, past its hooks; its parts are called as usual.
        handle = model[0].model.encoder.register_forward_hook(lambda *args: passes.append(1))
        loss(columns(model, sentences, count))
        handle.remove()
        assert len(passes) == expected, loss_class.__name__
