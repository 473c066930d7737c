"""``python -m onnxopt_cli``."""

from onnxopt_cli.cli import main

main()
