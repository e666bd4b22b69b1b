"""BibTeX of the papers, for the model card."""

SIMCSE = """
@inproceedings{gao-etal-2021-simcse,
    title = "{SimCSE}: Simple Contrastive Learning of Sentence Embeddings",
    author = "Gao, Tianyu and Yao, Xingcheng and Chen, Danqi",
    booktitle = "Proceedings of the 2021 Conference on Empirical Methods in Natural Language Processing",
    year = "2021",
    publisher = "Association for Computational Linguistics",
    url = "https://arxiv.org/abs/2104.08821",
}
"""

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

DIFFCSE = """
@inproceedings{chuang-etal-2022-diffcse,
    title = "{D}iff{CSE}: Difference-based Contrastive Learning for Sentence Embeddings",
    author = "Chuang, Yung-Sung and Dangovski, Rumen and Luo, Hongyin and Zhang, Yang and Chang, Shiyu and
      Solja{\\v{c}}i{\\'c}, Marin and Li, Shang-Wen and Yih, Scott and Kim, Yoon and Glass, James",
    booktitle = "Proceedings of the 2022 Conference of the North American Chapter of the Association for
      Computational Linguistics",
    year = "2022",
    publisher = "Association for Computational Linguistics",
    url = "https://arxiv.org/abs/2204.10298",
}
"""

MOMENTUM = """
@inproceedings{wu-etal-2022-esimcse,
    title = "{ES}im{CSE}: Enhanced Sample Building Method for Contrastive Learning of Unsupervised Sentence Embedding",
    author = "Wu, Xing and Gao, Chaochen and Zang, Liangjun and Han, Jizhong and Wang, Zhongyuan and Hu, Songlin",
    booktitle = "Proceedings of the 29th International Conference on Computational Linguistics",
    year = "2022",
    publisher = "International Committee on Computational Linguistics",
    url = "https://arxiv.org/abs/2109.04380",
}
@inproceedings{he-etal-2020-moco,
    title = "Momentum Contrast for Unsupervised Visual Representation Learning",
    author = "He, Kaiming and Fan, Haoqi and Wu, Yuxin and Xie, Saining and Girshick, Ross",
    booktitle = "Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition",
    year = "2020",
    url = "https://arxiv.org/abs/1911.05722",
}
"""
