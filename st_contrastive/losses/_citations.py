"""BibTeX that more than one loss cites."""

INFOCSE = """
@inproceedings{wu-etal-2022-infocse,
    title = "{InfoCSE}: Information-aggregated Contrastive Learning of Sentence Embeddings",
    author = "Wu, Xing and Gao, Chaochen and Lin, Zijia and Han, Jizhong and Wang, Zhongyuan and Hu, Songlin",
    booktitle = "Findings of the Association for Computational Linguistics: EMNLP 2022",
    year = "2022",
    publisher = "Association for Computational Linguistics",
    url = "https://arxiv.org/abs/2210.06432",
}
"""
