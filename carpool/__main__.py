"""The command `carpool`, also as `python -m carpool`."""


def main() -> None:
    """Runs the command line and exits."""
    from cli.main import main

    main()


if __name__ == "__main__":
    main()
