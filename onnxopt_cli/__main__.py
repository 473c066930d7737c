"""The command ``onnxopt``, also as ``python -m onnxopt_cli``."""

import os
import signal


def main() -> None:
    """Run the command line and exit; signals are heard before anything large is imported."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        # Windows has no SIGHUP; whoever starts the command may have it ignore the others.
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    from onnxopt_cli.cli import main as command

    command()


def _end(number: int, _: object) -> None:
    """End this process without a word: there is nothing to clean up yet."""
    os._exit(128 + number)


if __name__ == "__main__":
    main()
