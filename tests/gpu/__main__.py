"""``python -m tests.gpu`` runs the tests of this folder on a GPU. Without a GPU it prints a line and succeeds."""

from __future__ import annotations

import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    import pytest
    import torch

    if not torch.cuda.is_available():
        print("No CUDA device was found: the GPU tests are skipped.")
        return 0
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, on {names}")
    return int(pytest.main(["-v", "--durations=10", str(Path(__file__).parent), *arguments]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
