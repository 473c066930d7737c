"""The command ``onnxopt``, also as ``python -m onnxopt_cli``."""

from onnxopt_cli.isolation.interruption import stop_at_once


def main() -> None:
    """Run the command line and exit; signals are heard before anything large is imported."""
    stop_at_once()
    from onnxopt_cli.cli import main as command

    command()


if __name__ == "__main__":
    main()
