"""Entry point of the command ``onnxopt`` and of ``python -m onnxopt_cli``."""

# The usual module `signal`, a wrapper of `_signal`, takes milliseconds to import.
import _signal  # type: ignore[import-not-found]
import os


def main() -> None:
    """Install signal handlers, run the command line, and exit."""
    _end_at_signals()
    try:
        from onnxopt_cli.cli import main as command

        command()
    except KeyboardInterrupt as stop:
        # The signal has arrived after the handlers of the command were removed.
        os._exit(getattr(stop, "exit_code", 130))
    finally:
        # Python takes some time to shut down, during which signals must still end the process.
        _end_at_signals()


def _end_at_signals() -> None:
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        # Windows has no SIGHUP. A signal that the parent process has set to be ignored stays
        # ignored.
        number = getattr(_signal, name, None)
        if number is not None and _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, _end)


def _end(number: int, _: object) -> None:
    """End this process immediately, because nothing has to be cleaned up."""
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(128 + number)


if __name__ == "__main__":
    main()
