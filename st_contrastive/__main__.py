"""``python -m st_contrastive``."""

import sys

from st_contrastive.cli import main

if __name__ == "__main__":
    sys.exit(main())
