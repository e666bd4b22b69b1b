"""Settings that several papers share: SimCSE's training loop, and names of checkpoints."""

from __future__ import annotations

from st_contrastive.recipes.recipe import Difference, Setting, cite

SIMCSE = "SimCSE, authors' README, Hyperparameters"
SIMCSE_CODE = "SimCSE, authors' run_unsup_example.sh"
BERT, LARGE, ROBERTA = "bert-base-uncased", "bert-large-uncased", "roberta-base"

DATA = Difference("trained on --data; the paper takes 1,000,000 sentences of English Wikipedia (wiki1m_for_simcse.txt)")
FLOAT16 = Difference("float16 in the authors' code: add --bf16", ("bf16",))

#: SimCSE's training loop, which the other papers follow; the best step on the development split is kept.
LOOP = {
    **cite(SIMCSE_CODE, max_length=32, epochs=1, evaluate_steps=125),
    **cite("transformers' default, which SimCSE's run_unsup_example.sh keeps", warmup=0.0, seed=42),
    **cite(f"{SIMCSE_CODE}: --metric_for_best_model stsb_spearman, of the development split", dev_from_hub=True),
}
AS_LOOP = {name: Setting(one.value, f"as {one.source}") for name, one in LOOP.items()}
