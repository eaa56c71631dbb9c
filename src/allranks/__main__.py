"""python -m allranks, and the console script"""

from allranks import early


def main() -> None:
    """Entry point."""
    early.begin()
    from allranks.cli.main import main as run_command  # from here on Ctrl-C is a word

    run_command(owns_process=True)


if __name__ == "__main__":
    main()
