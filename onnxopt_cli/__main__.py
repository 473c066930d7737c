"""The command ``onnxopt``, also as ``python -m onnxopt_cli``."""

# The module signal is not there yet, and takes milliseconds to load.
import _signal  # type: ignore[import-not-found]
import os


def main() -> None:
    """Run the command line and exit; signals are heard before anything else is imported."""
    _end_at_signals()
    try:
        from onnxopt_cli.cli import main as command

        command()
    except KeyboardInterrupt as stop:
        # The signal arrived after the handlers of the command had been removed.
        os._exit(getattr(stop, "exit_code", 130))
    finally:
        # Python takes a while to end.
        _end_at_signals()


def _end_at_signals() -> None:
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        # Windows has no SIGHUP. The parent process may have set the others to be ignored.
        number = getattr(_signal, name, None)
        if number is not None and _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, _end)


def _end(number: int, _: object) -> None:
    """End this process without a word: there is nothing to clean up."""
    os._exit(128 + number)


if __name__ == "__main__":
    main()
