"""``python -m kilolayer``."""

from kilolayer.cli.main import main

main()
