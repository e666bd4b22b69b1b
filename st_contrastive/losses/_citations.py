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

CONISI = """
@inproceedings{sun-huang-2022-conisi,
    title = "{ConIsI}: A Contrastive Framework with Inter-sentence Interaction
        for Self-supervised Sentence Representation",
    author = "Sun, Meng and Huang, Degen",
    booktitle = "Proceedings of the 21st Chinese National Conference on Computational Linguistics",
    year = "2022",
    publisher = "Chinese Information Processing Society of China",
}
"""

TWINS = """
@article{xiao-etal-2023-twins,
    title = "Identical and Fraternal Twins: Fine-Grained Semantic Contrastive Learning of Sentence Representations",
    author = "Xiao, Qingfa and Li, Shuangyin and Chen, Lei",
    journal = "arXiv preprint arXiv:2307.10932",
    year = "2023",
    url = "https://arxiv.org/abs/2307.10932",
}
"""
